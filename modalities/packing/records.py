"""Sequence records of one token shard: which spans of which documents make up each sequence.

| file | holds |
|---|---|
| `sequences.bin` | int64, S + 1: first piece of each sequence; the last entry is the number of pieces |
| `pieces.bin` | int64, P x 3: start in the shard in tokens, length in tokens, document |
| `records.json` | counts and how they were made |

A sequence is a row of up to T + 1 tokens, its pieces one after another: token c is the input at c and token c + 1 its target, so
a row of n tokens trains n - 1 pairs. What a row lacks is padding.

- concatenate: row i is the tokens i*T to i*T + T of the shard. A row starts where the last target of the one before stood, so
  that every pair of neighbours in the shard is trained once. Only the last row has padding.
- best_fit: whole documents, best-fit-decreasing in windows. Only documents over T + 1 tokens are cut: into rows of their own
  that overlap by one token, and a rest that is packed like a document. Every pair within a document is trained once.

24 bytes per piece, 8 per sequence: 3.6 % of uint16 tokens at 600 a document and 1,024 a sequence.
Memory: the shard's document offsets and one block.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from modalities.errors import StoreError
from modalities.manifest import write_json
from modalities.packing.config import PackingUnitSection

Ints = np.ndarray[Any, np.dtype[np.int64]]
Block = tuple[Ints, Ints]
"""Pieces per sequence [S], and the pieces [P, 3]."""

FORMAT = 1
_BLOCK_SEQUENCES = 1 << 18


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """What `records.json` says."""

    sequence_length: int
    method: str
    window_documents: int | None
    dtype: str
    """Type of the shard's tokens."""
    has_mask: bool
    tokens: int
    """Tokens of the shard."""
    sequences: int
    pieces: int
    documents: int
    """Documents of which at least one token is in a sequence."""
    cut_documents: int
    """Documents that do not lie in one sequence."""
    pairs: int
    """Inputs that have a target."""
    format: int = FORMAT

    @property
    def padding_tokens(self) -> int:
        """Inputs without a target."""
        return self.sequences * self.sequence_length - self.pairs


def write(folder: Path, blocks: Iterator[Block], *, section: PackingUnitSection, shard: Any) -> tuple[Records, str]:
    """Write the records of `shard` (a `tokens.Shard`); return what they are and a checksum of them."""
    checksum, first, sequences, pairs = xxhash.xxh3_128(), 0, 0, 0
    parts = np.zeros(shard.num_documents, np.uint8)
    with (folder / "sequences.bin").open("wb") as heads, (folder / "pieces.bin").open("wb") as bodies:
        for counts, pieces in blocks:
            starts = first + np.cumsum(counts) - counts
            for file, data in ((heads, starts), (bodies, pieces)):
                raw = np.ascontiguousarray(data, "<i8")
                file.write(raw.data)
                checksum.update(raw.data)
            first, sequences = first + len(pieces), sequences + len(counts)
            pairs += int(pieces[:, 1].sum()) - len(counts)
            _count_parts(parts, pieces[:, 2])
        heads.write(np.asarray([first], "<i8").data)
    records = Records(
        sequence_length=section.sequence_length,
        method=section.method,
        window_documents=section.window_documents,
        dtype=shard.dtype.name,
        has_mask=shard.mask is not None,
        tokens=shard.num_tokens,
        sequences=sequences,
        pieces=first,
        documents=int(np.count_nonzero(parts)),
        cut_documents=int(np.count_nonzero(parts > 1)),
        pairs=pairs,
    )
    write_json(folder / "records.json", dataclasses.asdict(records))
    return records, checksum.hexdigest()


def _count_parts(parts: Any, documents: Ints) -> None:
    """Count the pieces of each document, up to 2."""
    parts[documents] += parts[documents] < 2
    ordered = np.sort(documents)
    parts[ordered[1:][ordered[1:] == ordered[:-1]]] = 2


def read(folder: Path) -> Records:
    """Read `records.json`."""
    path = folder / "records.json"
    try:
        records = Records(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{path}: not readable sequence records ({error}); run packing again") from None
    if records.format != FORMAT:
        raise StoreError(f"{path}: expected format {FORMAT}, got {records.format}; run packing again")
    return records


# --- concatenate -----------------------------------------------------------------------------------------------------


def concatenate(offsets: Ints, *, sequence_length: int) -> Iterator[Block]:
    """Yield the records of back-to-back documents. `offsets` [D + 1]: where each document starts, and the end."""
    length, total = sequence_length, int(offsets[-1])
    num_sequences = -(-(total - 1) // length) if total > 1 else 0
    for first in range(0, num_sequences, _BLOCK_SEQUENCES):
        last = min(first + _BLOCK_SEQUENCES, num_sequences)
        # Documents that start inside a row, after its first token; one that starts on a cut is the row's last target.
        low, high = np.searchsorted(offsets[:-1], [first * length + 1, min(last * length + 1, total)])
        inner = np.arange(low, high)
        inner = inner[offsets[inner + 1] > offsets[inner]]
        row_of_inner = (offsets[inner] - 1) // length - first
        rows = np.arange(last - first)
        head_at = rows + np.searchsorted(row_of_inner, rows)
        inner_at = np.arange(len(inner)) + row_of_inner + 1
        pieces = np.empty((len(rows) + len(inner), 3), np.int64)
        pieces[head_at, 0] = (first + rows) * length
        pieces[inner_at, 0] = offsets[inner]
        pieces[head_at, 2] = np.searchsorted(offsets, (first + rows) * length, side="right") - 1
        pieces[inner_at, 2] = inner
        pieces[:-1, 1] = pieces[1:, 0] - pieces[:-1, 0]
        tail_at = np.append(head_at[1:], len(pieces)) - 1
        pieces[tail_at, 1] = np.minimum((first + rows) * length + length + 1, total) - pieces[tail_at, 0]
        yield np.diff(np.append(head_at, len(pieces))), pieces


# --- best fit --------------------------------------------------------------------------------------------------------


def best_fit(offsets: Ints, *, sequence_length: int, window_documents: int) -> Iterator[Block]:
    """Yield the records of best-fit-decreasing over windows of documents. `offsets` as for `concatenate`."""
    num_documents = len(offsets) - 1
    for first in range(0, num_documents, window_documents):
        last = min(first + window_documents, num_documents)
        documents = first + np.flatnonzero(offsets[first + 1 : last + 1] > offsets[first:last])
        if len(documents):
            yield _fit_window(documents, offsets, sequence_length)


def _fit_window(documents: Ints, offsets: Ints, length: int) -> Block:
    from modalities.packing.best_fit import best_fit_decreasing

    starts, sizes = offsets[documents], offsets[documents + 1] - offsets[documents]
    rows_of_own = np.maximum(0, -(-(sizes - length - 1) // length))
    which = np.repeat(np.arange(len(documents)), rows_of_own)
    nth = np.arange(len(which)) - np.repeat(np.cumsum(rows_of_own) - rows_of_own, rows_of_own)
    cut = np.stack([starts[which] + nth * length, np.full(len(which), length + 1), documents[which]], axis=1)
    skip = rows_of_own * length
    rest = np.stack([starts + skip, sizes - skip, documents], axis=1)
    bins = best_fit_decreasing(rest[:, 1], capacity=length + 1)
    order = np.argsort(bins, kind="stable")
    counts = np.bincount(bins)
    # A lone end-of-document token has no target, so a row of it would train nothing.
    useful = np.bincount(bins, weights=rest[:, 1]) > 1
    rest = rest[order][useful[bins[order]]]
    return np.concatenate([np.ones(len(cut), np.int64), counts[useful]]), np.concatenate([cut, rest])
