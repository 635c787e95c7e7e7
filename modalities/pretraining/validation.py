"""Bits per byte on a fixed part of the held-out documents while training, exact at any number of ranks.

A document is read in windows of the training length, each token scored once; the first sees the end-of-document token
before it, and that token itself is not scored. Bits are summed over ranks in float64 and divided
by the bytes of the same documents.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from modalities.documents import GroupReader
from modalities.pretraining.loss import IGNORED, TokenLoss
from modalities.pretraining.parallel import Replica
from modalities.tokens import Shard

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """The documents that validation reads, cut into windows."""

    sources: tuple[str, ...]
    text_bytes: tuple[int, ...]
    """By source, of the chosen documents."""
    documents: tuple[int, ...]
    tokens: Tensor
    """[N, T] inputs."""
    targets: Tensor
    """[N, T]; `IGNORED` where nothing is scored."""
    owner: Tensor
    """[N] index of the source of each window."""


def read_heldout(tokens: Path, documents: Path, *, length: int, max_documents: int, max_tokens: int) -> HeldOut | None:
    """Choose documents per source in their order, as many as fit both limits but at least one; None without any."""
    shard = Shard(tokens)
    end = shard.sidecar.end_of_document if shard.sidecar is not None else None
    names, sizes = _columns(documents)
    chosen = _choose(names, np.diff(shard.offsets).tolist(), max_documents, max_tokens)
    if not chosen or max_documents == 0:
        return None
    windows: list[tuple[int, Array, Array]] = []
    for owner, rows in enumerate(chosen.values()):
        for row in rows:
            windows += [(owner, *pair) for pair in _windows(shard.document(row), end, length)]
    if not windows:
        return None
    return HeldOut(
        sources=tuple(chosen),
        text_bytes=tuple(sum(sizes[row] for row in rows) for rows in chosen.values()),
        documents=tuple(len(rows) for rows in chosen.values()),
        tokens=torch.from_numpy(np.stack([w[1] for w in windows])),
        targets=torch.from_numpy(np.stack([w[2] for w in windows])),
        owner=torch.tensor([w[0] for w in windows]),
    )


def _columns(path: Path) -> tuple[list[str], list[int]]:
    names: list[str] = []
    sizes: list[int] = []
    for table in GroupReader(path).groups(["source", "text_bytes"]):
        names += table.column("source").to_pylist()
        sizes += table.column("text_bytes").to_pylist()
    return names, sizes


def _choose(names: list[str], lengths: list[int], max_documents: int, max_tokens: int) -> dict[str, list[int]]:
    chosen: dict[str, list[int]] = {}
    for source in sorted(set(names)):
        rows = [row for row, name in enumerate(names) if name == source and lengths[row] > 1]
        total = 0
        kept: list[int] = []
        for row in rows:
            if len(kept) < max_documents and total + lengths[row] <= max_tokens:
                kept.append(row)
                total += lengths[row]
        if not kept and rows:
            kept = [min(rows, key=lambda row: lengths[row])]
        if kept:
            chosen[source] = kept
    return chosen


def _windows(ids: Array, end: int | None, length: int) -> list[tuple[Array, Array]]:
    ids = ids.astype(np.int64)
    if end is not None and ids[-1] == end:
        ids = ids[:-1]
    inputs = np.concatenate(([end if end is not None else ids[0]], ids[:-1]))
    targets = ids if end is not None else np.concatenate(([IGNORED], ids[1:]))
    windows = []
    for start in range(0, len(ids), length):
        pair = (np.zeros(length, np.int64), np.full(length, IGNORED, np.int64))
        part = slice(start, min(start + length, len(ids)))
        pair[0][: part.stop - start], pair[1][: part.stop - start] = inputs[part], targets[part]
        windows.append(pair)
    return windows


@torch.no_grad()
def validate(replica: Replica, heldout: HeldOut, *, micro_batch: int, piece_tokens: int) -> dict[str, dict[str, float]]:
    """Return figures per source, and under `all` those of all bytes together. All ranks call it; all get the same."""
    place = replica.placement
    sums = torch.zeros(len(heldout.sources), 2, dtype=torch.float64)
    rounds = -(-heldout.tokens.shape[0] // (micro_batch * place.data_ranks))
    for i in range(rounds):
        first = (i * place.data_ranks + place.data_rank) * micro_batch
        rows = torch.arange(first, first + micro_batch) % heldout.tokens.shape[0]
        targets = heldout.targets[rows]
        targets[torch.arange(first, first + micro_batch) >= heldout.tokens.shape[0]] = IGNORED
        loss = TokenLoss(
            targets.to(place.device), scale=1.0, method=replica.loss_method, piece_tokens=piece_tokens, z_loss=None
        )
        with replica.scoring():
            replica.model(heldout.tokens[rows].to(place.device), loss=loss)
        assert loss.losses is not None
        nats = loss.losses.view(targets.shape).double().sum(1).cpu()
        sums.index_add_(0, heldout.owner[rows], torch.stack((nats, (targets != IGNORED).sum(1).double()), dim=1))
    replica.sum_over_data(sums)
    return _figures(heldout, sums)


def _figures(heldout: HeldOut, sums: Tensor) -> dict[str, dict[str, float]]:
    figures = {
        name: _figure(sums[i], heldout.text_bytes[i], heldout.documents[i]) for i, name in enumerate(heldout.sources)
    }
    return {**figures, "all": _figure(sums.sum(0), sum(heldout.text_bytes), sum(heldout.documents))}


def _figure(sums: Tensor, text_bytes: int, documents: int) -> dict[str, float]:
    nats, tokens = float(sums[0]), float(sums[1])
    return {
        "bits_per_byte": nats / math.log(2.0) / max(1, text_bytes),
        "loss": nats / max(1.0, tokens),
        "tokens": int(tokens),
        "bytes": text_bytes,
        "documents": documents,
    }
