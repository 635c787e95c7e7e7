"""From the packed sequences of a step to tensors of one rank; and the held-out windows for validation.

Step S reads sequences [S n, (S + 1) n) of the packing's endless order, so a position is the step and nothing has to be saved.
A rank reads a contiguous share of them, whatever the number of ranks.
"""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from modalities.pretraining.loss import IGNORED

Array = np.ndarray[Any, Any]


class Read(Protocol):
    """What a reader returns for B sequences of T tokens."""

    @property
    def tokens(self) -> Array:
        """[B, T + 1]: inputs, and targets one further."""

    @property
    def loss_mask(self) -> Array:
        """[B, T]: true where the target counts."""

    @property
    def documents(self) -> Array:
        """[B, T]: number of the document of each input token."""

    @property
    def sources(self) -> Array:
        """[B]: index of the source of each sequence, in `source_names`."""


class Reader(Protocol):
    """The packing's endless order of sequences."""

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the sources, in order of their index."""

    def batch(self, first: int, last: int) -> Read:
        """Return sequences [first, last)."""


@dataclasses.dataclass(frozen=True, slots=True)
class RandomSequences:
    """What `RandomReader` returns."""

    tokens: Array
    loss_mask: Array
    documents: Array
    sources: Array


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RandomReader:
    """Sequences of random ids, four documents in each: for measuring speed without data."""

    length: int
    vocab_size: int
    source_names: tuple[str, ...] = ("random",)

    def batch(self, first: int, last: int) -> RandomSequences:
        """Return sequences [first, last), a function of these numbers."""
        count = last - first
        tokens = np.random.default_rng((first, last)).integers(self.vocab_size, size=(count, self.length + 1))
        documents = np.broadcast_to(np.arange(self.length) * 4 // self.length, (count, self.length))
        mask = np.ones((count, self.length), np.bool_)
        return RandomSequences(tokens, mask, documents.copy(), np.zeros(count, np.int64))


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of one rank as tensors on the CPU."""

    tokens: Tensor
    """[B, T] int64."""
    targets: Tensor
    """[B, T] int64; `IGNORED` where a token does not count."""
    documents: Tensor | None
    """[B, T] int32, if attention is masked by document."""
    sources: Tensor
    """[B] int64."""

    def micro_batches(self, size: int, device: torch.device) -> Iterator["Batch"]:
        """Yield pieces of `size` sequences on the device."""
        for start in range(0, self.tokens.shape[0], size):
            part = slice(start, start + size)
            tensors = (self.tokens, self.targets, self.documents, self.sources)
            yield Batch(*(None if t is None else t[part].to(device, non_blocking=True) for t in tensors))  # type: ignore[arg-type]


class Steps:
    """This rank's batch for each step; the next one is read while a step computes."""

    def __init__(
        self, reader: Reader, *, sequences: int, data_rank: int, data_ranks: int, document_mask: bool, last_step: int
    ) -> None:
        self.source_names = reader.source_names
        self._reader, self._sequences, self._document_mask = reader, sequences, document_mask
        self._share = sequences // data_ranks
        self._offset = data_rank * self._share
        self._last_step = last_step
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next: tuple[int, Future[Batch]] | None = None

    def batch(self, step: int) -> Batch:
        """Return the batch of a step, and begin to read that of the next."""
        ready = self._next is not None and self._next[0] == step
        batch = self._next[1].result() if self._next is not None and ready else self._read(step)
        self._next = (step + 1, self._pool.submit(self._read, step + 1)) if step + 1 < self._last_step else None
        return batch

    def close(self) -> None:
        """End the reading thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, step: int) -> Batch:
        first = step * self._sequences + self._offset
        return to_batch(self._reader.batch(first, first + self._share), document_mask=self._document_mask)


def to_batch(read: Read, *, document_mask: bool) -> Batch:
    """Turn what a reader returns into tensors."""
    tokens = torch.from_numpy(read.tokens.astype(np.int64, copy=False))
    counts = torch.from_numpy(np.ascontiguousarray(read.loss_mask)).bool()
    return Batch(
        tokens=tokens[:, :-1].contiguous(),
        targets=torch.where(counts, tokens[:, 1:], IGNORED),
        documents=torch.from_numpy(read.documents.astype(np.int32, copy=False)) if document_mask else None,
        sources=torch.from_numpy(read.sources.astype(np.int64, copy=False)),
    )
