"""Read sequences from memory-mapped token shards, in the order of training, at random access.

`batch(first, last)` returns the slots `[first, last)`, or one rank's part of them. What a slot holds depends on index and
data seed alone, so resuming is asking for the next slots: there is no state to save. With B rows of T inputs:

    tokens     [B, T + 1] int32   inputs are [:, :-1], targets [:, 1:]; padding is 0
    loss_mask  [B, T]     bool    whether the target counts: False for padding, where the shard's mask says so and, without
                                  `cross_documents`, for the first token of a document
    starts     [N + 1]    int32   where documents start in the B * T inputs laid flat, and the end (cu_seqlens)
    sources    [B]        int64   number of the row's source in `source_names`
    positions, documents  [B, T]  int32: position within the document; number of the document in its row. Made on demand.

A row's padding counts as one more document, so no row is without one. Costs on a warm page cache: benchmarks/packing.py.
"""

import collections
import dataclasses
import itertools
import mmap
import operator
import queue
import resource
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from modalities.errors import StoreError
from modalities.packing import index as merged
from modalities.packing import records
from modalities.work import Upstream

Array = np.ndarray[Any, np.dtype[Any]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

_FILES_PER_SHARD = 4
_MAX_OPEN_SHARDS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Rows of tokens; shapes in the module's docstring."""

    tokens: Array
    loss_mask: Array
    starts: Array
    sources: Array

    @property
    def positions(self) -> Array:
        """[B, T] int32: position of each input within its document."""
        lengths = np.diff(self.starts)
        flat: Array = np.arange(self.loss_mask.size, dtype=np.int32) - np.repeat(self.starts[:-1], lengths)
        return flat.reshape(self.loss_mask.shape)

    @property
    def documents(self) -> Array:
        """[B, T] int32: number of the document within its row, from 0."""
        row: Ints = self.starts[:-1] // self.loss_mask.shape[1]
        first_of_row = np.searchsorted(row, row)
        number = (np.arange(len(row)) - first_of_row).astype(np.int32)
        flat: Array = np.repeat(number, np.diff(self.starts))
        return flat.reshape(self.loss_mask.shape)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A span of one document in a sequence."""

    source: str
    unit: str
    """Key of the token shard."""
    document: int
    """Number of the document in its token shard."""
    start: int
    """First token, counted from the start of the shard."""
    length: int
    shard: Path
    """The token shard, without suffix."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class UnitFiles:
    """Where one token shard and its records are."""

    source: str
    key: str
    shard: Path
    """Without suffix."""
    records: Path


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Open:
    """A token shard and its records, mapped."""

    tokens: Array
    raw: memoryview
    """The same as bytes."""
    mask: Array | None
    heads: Ints
    pieces: Ints
    maps: tuple[mmap.mmap, ...]


class SequenceReader:
    """Random access to sequences by slot. Not for use by several threads at once; `Prefetcher` gives it one of its own."""

    def __init__(
        self, index: merged.Index, units: Iterable[UnitFiles], *, data_seed: int, cross_documents: bool = True
    ) -> None:
        self.index = index
        self._cross_documents = cross_documents
        self.data_seed = data_seed
        self.order = index.order()
        self.source_names = self.order.sources
        self._units = tuple(units)
        sizes = [unit.sequences for source in index.sources for unit in source.units]
        self._unit_starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
        source_sizes = np.asarray(self.order.sizes, np.int64)
        self._source_starts = np.cumsum(source_sizes) - source_sizes
        self._opened: collections.OrderedDict[int, _Open] = collections.OrderedDict()
        soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._max_open = max(1, min(_MAX_OPEN_SHARDS, soft_limit // (2 * _FILES_PER_SHARD)))

    @classmethod
    def open(
        cls,
        packing: Upstream,
        tokenization: Mapping[str, Upstream],
        *,
        data_seed: int,
        cross_documents: bool = True,
    ) -> Self:
        """Open a packed data set: the instance `packing` and, for each source, the instance of its token shards.

        Both with their units. Raises `StoreError` if they do not belong together. `cross_documents`: whether the first token of
        a document counts as the target of what stands before it; False where attention is masked by document, as the model
        then cannot tell it from anything.
        """
        index = merged.read(packing.folder)
        units: list[UnitFiles] = []
        for source in index.sources:
            made = [unit for unit in packing.units if unit.manifest.info["source"] == source.name]
            shards = tokenization[source.name].units if source.name in tokenization else ()
            for what, got, expected in (
                ("units of packing", made, [unit.content for unit in source.units]),
                ("token shards", shards, [unit.shard for unit in source.units]),
            ):
                if [one.content for one in got] != expected:
                    raise StoreError(
                        f"{packing.folder / merged.NAME}: expected the {len(expected)} {what} that {source.name} was made "
                        f"of, got {len(got)} or others; run packing again"
                    )
            units += (
                UnitFiles(
                    source=source.name, key=shard.manifest.key, shard=shard.folder / "tokens", records=unit.folder
                )
                for shard, unit in zip(shards, made, strict=True)
            )
        return cls(index, units, data_seed=data_seed, cross_documents=cross_documents)

    def batch(self, first: int, last: int, *, rank: int = 0, ranks: int = 1) -> Batch:
        """Return the slots `[first, last)`, or the part of one of `ranks` ranks: consecutive, as even as it goes."""
        return self.read(_part(first, last, rank=rank, ranks=ranks))

    def read(self, slots: Ints) -> Batch:
        """Return any slots, in the order given."""
        sources, units, pieces, rows = self._pieces(slots)
        width = self.index.sequence_length + 1
        lengths = pieces[:, 2]
        row_sizes = np.bincount(rows, weights=lengths, minlength=len(slots)).astype(np.int64)
        columns = np.cumsum(lengths) - lengths - (np.cumsum(row_sizes) - row_sizes)[rows]
        runs = _runs(pieces, rows * width + columns)
        target = np.ones((len(slots), width), np.bool_)
        padded = np.flatnonzero(row_sizes < width)
        target[padded] = np.arange(width) < row_sizes[padded, None]
        self._copy_masks(runs, target.reshape(-1))
        if not self._cross_documents:
            target[rows, columns] = False
        return Batch(
            tokens=self._copy_tokens(runs, units, padded, width),
            loss_mask=target[:, 1:],
            starts=_starts(rows, columns, row_sizes, width - 1),
            sources=sources,
        )

    def documents_of(self, slot: int) -> list[Piece]:
        """Return what one sequence is made of, in its order."""
        _, units, pieces, _ = self._pieces(np.asarray([slot], np.int64))
        unit = self._units[int(units[0])]
        return [
            Piece(source=unit.source, unit=unit.key, document=document, start=start, length=length, shard=unit.shard)
            for _, start, length, document in pieces.tolist()
        ]

    def advise(self, first: int, last: int, *, rank: int = 0, ranks: int = 1) -> None:
        """Ask the kernel to fetch the tokens of these slots; returns at once."""
        _, _, pieces, _ = self._pieces(_part(first, last, rank=rank, ranks=ranks))
        for unit, start, length, _ in pieces.tolist():
            opened = self._open(unit)
            for mapped, size in zip(opened.maps, (opened.tokens.itemsize, 1), strict=False):
                page = start * size // mmap.PAGESIZE * mmap.PAGESIZE
                mapped.madvise(mmap.MADV_WILLNEED, page, (start + length) * size - page)

    def _pieces(self, slots: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return source and unit of each row, pieces [P, 4] (unit, start, length, document), and the row of each piece."""
        sources, _, numbers = self.order.sequences(np.asarray(slots, np.int64), data_seed=self.data_seed)
        numbers = numbers + self._source_starts[sources]
        units = np.searchsorted(self._unit_starts, numbers, side="right") - 1
        within = numbers - self._unit_starts[units]
        heads, counts = np.empty_like(units), np.empty_like(units)
        by_unit = np.argsort(units, kind="stable")
        groups = np.split(by_unit, np.flatnonzero(np.diff(units[by_unit])) + 1) if len(slots) else []
        for mine in groups:
            opened = self._open(int(units[mine[0]]))
            heads[mine] = opened.heads[within[mine]]
            counts[mine] = opened.heads[within[mine] + 1] - heads[mine]
        rows = np.repeat(np.arange(len(units)), counts)
        first = np.cumsum(counts) - counts
        at = np.arange(len(rows)) + (heads - first)[rows]
        pieces = np.empty((len(rows), 4), np.int64)
        pieces[:, 0] = units[rows]
        for mine in groups:
            unit = int(units[mine[0]])
            chosen = _ranges(first[mine], counts[mine])
            pieces[chosen, 1:] = self._open(unit).pieces[at[chosen]]
        return sources, units, pieces, rows

    def _copy_tokens(self, runs: Ints, units: Ints, padded: Ints, width: int) -> Array:
        """Return [B, T + 1] int32: bytes are moved in the type of the shards and widened at once, 3 times as fast."""
        numbers = np.unique(units)
        sizes = np.asarray([self._open(number).tokens.itemsize for number in numbers.tolist()], np.int64)
        parts = []
        for size in np.unique(sizes).tolist():
            narrow = np.empty((len(units), width), f"<u{size}" if size <= 2 else f"<i{size}")
            narrow[padded] = 0
            to = narrow.reshape(-1).view(np.uint8).data
            chosen = runs if len(sizes) == 1 else runs[np.isin(runs[:, 0], numbers[sizes == size])]
            scaled = chosen * np.asarray([1, size, size, size, size])
            for number, of_unit in itertools.groupby(scaled.tolist(), key=operator.itemgetter(0)):
                raw = self._open(number).raw
                for _, begin, end, place, place_end in of_unit:
                    to[place:place_end] = raw[begin:end]
            parts.append((size, narrow))
        if len(parts) == 1:
            return parts[0][1].astype(np.int32)
        tokens = np.zeros((len(units), width), np.int32)
        size_of_row = sizes[np.searchsorted(numbers, units)]
        for size, narrow in parts:
            tokens[size_of_row == size] = narrow[size_of_row == size]
        return tokens

    def _copy_masks(self, runs: Ints, target: Array) -> None:
        masked = [number for number in np.unique(runs[:, 0]).tolist() if self._open(number).mask is not None]
        if not masked:
            return
        for number, begin, end, place, place_end in runs[np.isin(runs[:, 0], masked)].tolist():
            mask = self._open(number).mask
            assert mask is not None
            target[place:place_end] = mask[begin:end]

    def _open(self, number: int) -> _Open:
        if number in self._opened:
            self._opened.move_to_end(number)
            return self._opened[number]
        opened = self._opened[number] = _open(self._units[number])
        while len(self._opened) > self._max_open:
            self._opened.popitem(last=False)
        return opened


def _ranges(starts: Ints, counts: Ints) -> Ints:
    """Return the numbers from each start on, `counts` of them, one after another."""
    skipped = np.cumsum(counts) - counts
    numbers: Ints = np.arange(int(counts.sum())) + np.repeat(starts - skipped, counts)
    return numbers


def _runs(pieces: Ints, at: Ints) -> Ints:
    """Return what to copy, unit by unit: [R, 5] of unit, first token and end in the shard, and in the flat batch.

    Pieces that are neighbours both in their shard and in the batch become one run; `concatenate` has one per row.
    """
    unit, start, length = pieces[:, 0], pieces[:, 1], pieces[:, 2]
    if len(pieces) == 0:
        return np.empty((0, 5), np.int64)
    joined = (unit[1:] == unit[:-1]) & (start[1:] == start[:-1] + length[:-1]) & (at[1:] == at[:-1] + length[:-1])
    heads = np.flatnonzero(np.append(True, ~joined))
    sizes = np.add.reduceat(length, heads)
    runs = np.column_stack([unit[heads], start[heads], start[heads] + sizes, at[heads], at[heads] + sizes])
    by_unit: Ints = runs[np.argsort(unit[heads], kind="stable")]
    return by_unit


def _part(first: int, last: int, *, rank: int, ranks: int) -> Ints:
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} of {ranks}")
    low, high = (first + (last - first) * part // ranks for part in (rank, rank + 1))
    return np.arange(low, high, dtype=np.int64)


def _starts(rows: Ints, columns: Ints, row_sizes: Ints, length: int) -> Array:
    """Return where documents, and each row's padding, start in the flat inputs, and the end."""
    inside = columns < length
    padded = np.flatnonzero(row_sizes < length)
    starts = np.concatenate([(rows * length + columns)[inside], padded * length + row_sizes[padded]])
    starts.sort()
    return np.append(starts, len(row_sizes) * length).astype(np.int32)


def _open(unit: UnitFiles) -> _Open:
    made = records.read(unit.records)
    dtype = np.dtype(made.dtype).newbyteorder("<")
    tokens, token_map = _map(unit.shard.with_name("tokens.bin"), dtype, made.tokens)
    mask: Array | None = None
    maps: tuple[mmap.mmap, ...] = (token_map,)
    if made.has_mask:
        mask, mask_map = _map(unit.shard.with_name("tokens.mask"), np.dtype("u1"), made.tokens)
        maps = (token_map, mask_map)
    heads, _ = _map(unit.records / "sequences.bin", np.dtype("<i8"), made.sequences + 1)
    pieces, _ = _map(unit.records / "pieces.bin", np.dtype("<i8"), 3 * made.pieces)
    return _Open(
        tokens=tokens, raw=memoryview(token_map), mask=mask, heads=heads, pieces=pieces.reshape(-1, 3), maps=maps
    )


def _map(file: Path, dtype: np.dtype[Any], count: int) -> tuple[Array, mmap.mmap]:
    try:
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise StoreError(f"{file}: cannot be mapped ({error}); run `modalities store verify`") from None
    if len(mapped) != count * dtype.itemsize:
        raise StoreError(
            f"{file}: expected {count * dtype.itemsize} bytes, got {len(mapped)}; run `modalities store verify`"
        )
    return np.frombuffer(mapped, dtype), mapped


# --- in the background -----------------------------------------------------------------------------------------------


class Prefetcher:
    """Read batches in a thread, `depth` ahead, in the order asked for. Use it in a `with` block, and iterate.

    `finish` (such as copying to a device) is applied in the thread. An error in the thread is raised at its batch.
    """

    def __init__(
        self,
        reader: SequenceReader,
        ranges: Iterable[tuple[int, int]],
        *,
        rank: int = 0,
        ranks: int = 1,
        depth: int = 2,
        finish: Callable[[Batch], Any] | None = None,
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth {depth}: expected 1 or more")
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        share = {"rank": rank, "ranks": ranks}
        self._thread = threading.Thread(
            target=self._work, args=(reader, iter(ranges), share, depth, finish), name="prefetch", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        while True:
            kind, value = self._queue.get()
            if kind == "batch":
                yield value
                continue
            self._queue.put((kind, value))  # whoever asks again gets the same answer
            if kind == "error":
                raise value
            return

    def close(self) -> None:
        """Stop the thread and wait for it."""
        self._stop.set()
        while self._thread.is_alive():
            self._drain()
            self._thread.join(timeout=0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drain(self) -> None:
        try:
            while True:
                self._queue.get_nowait()
        except queue.Empty:
            return

    def _work(
        self,
        reader: SequenceReader,
        ranges: Iterator[tuple[int, int]],
        share: Mapping[str, int],
        depth: int,
        finish: Callable[[Batch], Any] | None,
    ) -> None:
        try:
            for first, last in _advised(reader, ranges, share, depth):
                batch = reader.batch(first, last, **share)
                self._put(("batch", batch if finish is None else finish(batch)))
                if self._stop.is_set():
                    return
            self._put(("end", None))
        except BaseException as error:
            self._put(("error", error))

    def _put(self, item: tuple[str, Any]) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return


def _advised(
    reader: SequenceReader, ranges: Iterator[tuple[int, int]], share: Mapping[str, int], depth: int
) -> Iterator[tuple[int, int]]:
    """Yield the ranges; the kernel is told of each `depth` before its turn, so that a cold disk works on all of them."""
    ahead: collections.deque[tuple[int, int]] = collections.deque()
    for first, last in ranges:
        reader.advise(first, last, **share)
        ahead.append((first, last))
        if len(ahead) > depth:
            yield ahead.popleft()
    yield from ahead
