"""Token shards: the Megatron `.bin/.idx` pair, a JSON sidecar, and an optional loss mask.

A shard `<name>` is up to four files beside each other:

| file | holds |
|---|---|
| `<name>.bin` | token ids, little-endian, document after document; uint16 for up to 65,500 ids, else int32 |
| `<name>.idx` | 34-byte header, int32 length and int64 byte offset of each sequence, int64 document bounds (N + 1) |
| `<name>.mask` | uint8 per token: 1 where the loss is taken; absent: everywhere |
| `<name>.json` | sidecar: counts, largest id, tokenizer hash, checksums; absent for shards of somebody else |

We write one sequence per document. Megatron-LM, NeMo and GPT-NeoX read the pair as it is. A writer works on `*.partial`
names and renames at the end, the sidecar last; a killed one leaves nothing that counts. Opening reads and checks the
index (20 bytes per document); tokens stay memory-mapped. Writing holds 4 bytes per document in memory.
"""

import dataclasses
import itertools
import json
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import xxhash

from modalities.errors import InputError, StoreError
from modalities.manifest import write_json

Array = np.ndarray[Any, np.dtype[Any]]

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
"""Magic, version 1, dtype code, sequences, document boundaries."""
DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Dtype codes of the format that can hold token ids; 6 and 7 are floating point."""
MAX_UINT16_IDS = 65_500
FORMAT = 1
_CHUNK = 1 << 22


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sidecar:
    """What is known of a shard beyond its tokens; JSON on disk. Checksums are xxh3_128 of the files."""

    documents: int
    tokens: int
    dtype: str
    largest_id: int
    """Largest id in the shard; -1 if it holds no token."""
    tokenizer: str | None
    """SHA-256 of the tokenizer.json that made the ids."""
    end_of_document: int | None
    bin_checksum: str
    idx_checksum: str
    mask_checksum: str | None = None
    format: int = FORMAT


def token_dtype(num_ids: int) -> np.dtype[Any]:
    """Return the token width for `num_ids` ids, added tokens included: the format knows no uint32."""
    if not 0 < num_ids <= 2**31:
        raise InputError(
            f"vocabulary: expected between 1 and 2,147,483,648 ids, got {num_ids}; use a smaller vocabulary"
        )
    return np.dtype("<u2") if num_ids <= MAX_UINT16_IDS else np.dtype("<i4")


def part(path: Path, suffix: str) -> Path:
    """Return the path of one file of the shard `path`, such as `.bin`. Names may hold dots."""
    return path.with_name(path.name + suffix)


class ShardWriter:
    """Write a shard document by document. Leaving the `with` block without `finish` removes what was written."""

    def __init__(
        self, path: Path, *, dtype: np.dtype[Any], tokenizer: str | None = None, end_of_document: int | None = None
    ) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.num_tokens = 0
        self.largest_id = -1
        self._tokenizer = tokenizer
        self._end_of_document = end_of_document
        self._lengths: list[Array] = []
        self._code = _code(self.dtype)
        self._bin = _Output(part(path, ".bin"))
        self._mask: _Output | None = None

    def write(self, ids: Array, lengths: Array, *, mask: Array | None = None) -> None:
        """Append documents: `ids` flat, `lengths` in tokens, `mask` uint8 like `ids` (None: loss everywhere)."""
        lengths = np.asarray(lengths)
        if len(ids) != int(lengths.sum(dtype=np.int64)):
            raise ValueError(f"lengths add up to {lengths.sum()}, not to {len(ids)} ids")
        if len(lengths) and int(lengths.max()) >= 2**31:
            raise InputError(f"{self.path}: expected documents of under 2^31 tokens, got {lengths.max()}; split it")
        if len(ids):
            self._check_range(ids)
        self._bin.write(np.ascontiguousarray(ids, self.dtype))
        self._lengths.append(lengths.astype("<i4"))
        if mask is not None and self._mask is None:
            self._mask = _Output(part(self.path, ".mask"))
            for start in range(0, self.num_tokens, _CHUNK):
                self._mask.write(np.ones(min(_CHUNK, self.num_tokens - start), np.uint8))
        if self._mask is not None:
            self._mask.write(np.ones(len(ids), np.uint8) if mask is None else np.ascontiguousarray(mask, np.uint8))
        self.num_tokens += len(ids)

    def _check_range(self, ids: Array) -> None:
        low, high, limit = int(ids.min()), int(ids.max()), np.iinfo(self.dtype).max
        if low < 0 or high > limit:
            raise InputError(f"{self.path}: expected ids from 0 to {limit}, got {low} to {high}; use a wider type")
        self.largest_id = max(self.largest_id, high)

    def finish(self) -> Sidecar:
        """Write the index and the sidecar, rename all files, and return the sidecar."""
        lengths = np.concatenate(self._lengths) if self._lengths else np.empty(0, "<i4")
        index = _Output(part(self.path, ".idx"))
        try:
            for piece in _index_pieces(lengths, self._code, self.dtype.itemsize):
                index.write(piece)
            sidecar = Sidecar(
                documents=len(lengths),
                tokens=self.num_tokens,
                dtype=self.dtype.name,
                largest_id=self.largest_id,
                tokenizer=self._tokenizer,
                end_of_document=self._end_of_document,
                bin_checksum=self._bin.publish(),
                mask_checksum=None if self._mask is None else self._mask.publish(),
                idx_checksum=index.publish(),
            )
        finally:
            index.abandon()
        write_json(part(self.path, ".json"), dataclasses.asdict(sidecar))
        return sidecar

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bin.abandon()
        if self._mask is not None:
            self._mask.abandon()


class _Output:
    """A file under its partial name, hashed on the way."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._file: BinaryIO | None = self._partial.open("wb", buffering=0)
        self._hash = xxhash.xxh3_128()

    def write(self, data: Array | bytes) -> None:
        """Append bytes; a raw file may take fewer than it is given (2 GiB at most on Linux)."""
        assert self._file is not None
        view = memoryview(data.view(np.uint8).data if isinstance(data, np.ndarray) else data)
        self._hash.update(view)
        while view:
            view = view[self._file.write(view) :]

    def publish(self) -> str:
        """Make the file durable, give it its name and return its checksum."""
        assert self._file is not None
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        self._partial.replace(self._path)
        return self._hash.hexdigest()

    def abandon(self) -> None:
        """Remove the file unless it was published."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._partial.unlink(missing_ok=True)


def _code(dtype: np.dtype[Any]) -> int:
    for code, name in DTYPES.items():
        if np.dtype(name) == dtype:
            return code
    raise ValueError(f"no dtype code for {dtype}")


def _index_pieces(lengths: Array, code: int, itemsize: int) -> Iterator[bytes | Array]:
    count = len(lengths)
    yield HEADER.pack(MAGIC, 1, code, count, count + 1)
    yield lengths
    offset = 0
    for start in range(0, count, _CHUNK):
        ends = offset + np.cumsum(lengths[start : start + _CHUNK], dtype="<i8") * itemsize
        pointers = np.empty_like(ends)
        pointers[0], pointers[1:] = offset, ends[:-1]
        offset = int(ends[-1])
        yield pointers
    for start in range(0, count + 1, _CHUNK):
        yield np.arange(start, min(start + _CHUNK, count + 1), dtype="<i8")


class Shard:
    """A memory-mapped shard, ours or somebody else's."""

    def __init__(self, path: Path) -> None:
        """Open a shard; raise `StoreError` where its files do not fit each other."""
        self.path = path
        self.sidecar = _read_sidecar(path)
        raw = _read_index(path, self.sidecar)
        self.dtype, self.lengths, pointers, documents = _parse_index(raw, path)
        _check_index(self.lengths, pointers, documents, self.dtype.itemsize, path)
        self.num_tokens = int(self.lengths.sum(dtype=np.int64))
        self._check_size(".bin", self.num_tokens * self.dtype.itemsize)
        self._check_sidecar(len(documents) - 1)
        self.tokens: Array = _map(part(path, ".bin"), self.dtype)
        self.mask: Array | None = None
        if part(path, ".mask").exists():
            self._check_size(".mask", self.num_tokens)
            self.mask = _map(part(path, ".mask"), np.dtype("u1"))
        starts = np.zeros(len(self.lengths) + 1, np.int64)
        np.cumsum(self.lengths, out=starts[1:])
        self.offsets: Array = starts[documents]
        """int64, N + 1: where each document starts, in tokens; the last entry is the end."""

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.offsets) - 1

    def document(self, ordinal: int) -> Array:
        """Return the ids of one document, mapped, not copied."""
        return self.tokens[self.offsets[ordinal] : self.offsets[ordinal + 1]]

    def document_mask(self, ordinal: int) -> Array | None:
        """Return the loss mask of one document, or None where the shard has none."""
        return None if self.mask is None else self.mask[self.offsets[ordinal] : self.offsets[ordinal + 1]]

    def verify(self) -> None:
        """Read every byte and raise `StoreError` unless the checksums of the sidecar hold."""
        if self.sidecar is None:
            raise StoreError(f"{part(self.path, '.json')}: missing, so there is no checksum to verify")
        for suffix, expected in ((".bin", self.sidecar.bin_checksum), (".mask", self.sidecar.mask_checksum)):
            if expected is not None and (got := _checksum(part(self.path, suffix))) != expected:
                raise _damaged(part(self.path, suffix), f"xxh3_128 {expected}", got)

    def _check_size(self, suffix: str, expected: int) -> None:
        file = part(self.path, suffix)
        if not file.exists():
            raise StoreError(f"{file}: missing beside {part(self.path, '.idx')}; make the shard again")
        if (size := file.stat().st_size) != expected:
            what = "it is truncated" if size < expected else "the index is of another file"
            raise _damaged(file, f"{expected} bytes as its .idx says", f"{size}: {what}")

    def _check_sidecar(self, documents: int) -> None:
        side = self.sidecar
        if side is None:
            return
        expected = (side.documents, side.tokens, side.dtype)
        if (got := (documents, self.num_tokens, self.dtype.name)) != expected:
            raise _damaged(part(self.path, ".idx"), f"{expected} (documents, tokens, type) as in its sidecar", str(got))
        if (side.mask_checksum is None) == part(self.path, ".mask").exists():
            state = "a mask" if side.mask_checksum is not None else "no mask"
            raise _damaged(part(self.path, ".mask"), f"{state} as in its sidecar", "otherwise")


def _damaged(file: Path, expected: str, got: str) -> StoreError:
    return StoreError(f"{file}: expected {expected}, got {got}; make the shard again")


def _read_sidecar(path: Path) -> Sidecar | None:
    file = part(path, ".json")
    if not file.exists():
        return None
    try:
        return Sidecar(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise StoreError(f"{file}: not a shard's sidecar ({error}); make the shard again") from None


def _read_index(path: Path, sidecar: Sidecar | None) -> Array:
    file = part(path, ".idx")
    if not file.exists():
        raise StoreError(f"{file}: missing; expected a .bin and an .idx of the same name")
    raw = _map(file, np.dtype("u1"))
    if sidecar is not None and (got := _checksum(file)) != sidecar.idx_checksum:
        raise _damaged(file, f"xxh3_128 {sidecar.idx_checksum} as in its sidecar", got)
    return raw


def _parse_index(raw: Array, path: Path) -> tuple[np.dtype[Any], Array, Array, Array]:
    file = part(path, ".idx")
    if len(raw) < HEADER.size or bytes(raw[:9]) != MAGIC:
        raise StoreError(f"{file}: not a Megatron index (it does not begin with MMIDIDX); give the name without suffix")
    _, version, code, sequences, boundaries = HEADER.unpack(bytes(raw[: HEADER.size]))
    if version != 1 or code not in DTYPES:
        raise _damaged(file, "version 1 and an integer type", f"version {version}, type {code}")
    sizes = np.cumsum([HEADER.size, 4 * sequences, 8 * sequences, 8 * boundaries])
    modes = sequences  # multimodal shards append one byte per sequence
    if len(raw) not in (sizes[3], sizes[3] + modes) or boundaries < 1:
        raise _damaged(file, f"{sizes[3]} bytes for {sequences} sequences, {boundaries} boundaries", str(len(raw)))
    parts = [raw[a:b] for a, b in itertools.pairwise(sizes)]
    return np.dtype(DTYPES[code]), parts[0].view("<i4"), parts[1].view("<i8"), parts[2].view("<i8")


def _check_index(lengths: Array, pointers: Array, documents: Array, itemsize: int, path: Path) -> None:
    file = part(path, ".idx")
    if len(lengths) and int(lengths.min()) < 0:
        raise _damaged(file, "lengths of 0 or more", str(lengths.min()))
    if documents[0] != 0 or documents[-1] != len(lengths) or (len(documents) > 1 and np.diff(documents).min() < 0):
        raise _damaged(
            file, f"document boundaries that rise from 0 to {len(lengths)}", f"{documents[0]} to {documents[-1]}"
        )
    expected = np.zeros(len(lengths), np.int64)
    np.cumsum(lengths[:-1], dtype=np.int64, out=expected[1:])
    if not np.array_equal(pointers, expected * itemsize):
        raise _damaged(file, f"sequences of {itemsize}-byte tokens one after another", "gaps or another order")


def _map(file: Path, dtype: np.dtype[Any]) -> Array:
    return np.memmap(file, dtype, mode="r") if file.stat().st_size else np.empty(0, dtype)


def _checksum(file: Path) -> str:
    total = xxhash.xxh3_128()
    with file.open("rb") as stream:
        while block := stream.read(1 << 24):
            total.update(block)
    return total.hexdigest()


def merge(paths: Sequence[Path], out: Path) -> Sidecar:
    """Write the documents of several shards, in order, as one shard; raise `StoreError` if tokenizers differ."""
    shards = [Shard(path) for path in paths]
    known = [s.sidecar for s in shards if s.sidecar is not None]
    for name in ("tokenizer", "end_of_document"):
        if len(values := {getattr(s, name) for s in known}) > 1:
            raise StoreError(
                f"{out}: expected shards of one {name}, got {sorted(map(str, values))}; tokenize them alike"
            )
    dtype = np.dtype("<u2") if all(s.dtype.kind == "u" for s in shards) else np.dtype("<i4")
    first = known[0] if known else None
    with ShardWriter(
        out,
        dtype=dtype,
        tokenizer=first.tokenizer if first else None,
        end_of_document=first.end_of_document if first else None,
    ) as writer:
        for shard in shards:
            copy_documents(shard, writer, first=0, last=shard.num_documents)
        return writer.finish()


def split(path: Path, outs: Sequence[Path], *, documents: Sequence[int]) -> list[Sidecar]:
    """Write consecutive runs of documents as shards; `documents` says how many go into each and must add up."""
    shard = Shard(path)
    if sum(documents) != shard.num_documents or len(documents) != len(outs) or (documents and min(documents) < 0):
        raise InputError(
            f"{path}: expected counts that add up to {shard.num_documents} documents, got {list(documents)}"
        )
    side, first, written = shard.sidecar, 0, []
    for out, count in zip(outs, documents, strict=True):
        dtype = shard.dtype if shard.dtype.str in ("<u2", "<i4") else np.dtype("<i4")
        tokenizer, end = (side.tokenizer, side.end_of_document) if side else (None, None)
        with ShardWriter(out, dtype=dtype, tokenizer=tokenizer, end_of_document=end) as writer:
            copy_documents(shard, writer, first=first, last=first + count)
            written.append(writer.finish())
        first += count
    return written


def copy_documents(shard: Shard, writer: ShardWriter, *, first: int, last: int) -> None:
    """Append the documents `first` to `last` (exclusive) of a shard, about 4 Mi tokens at a time."""
    while first < last:
        end = int(np.searchsorted(shard.offsets, shard.offsets[first] + _CHUNK, side="right")) - 1
        stop = min(max(end, first + 1), last)
        a, b = shard.offsets[first], shard.offsets[stop]
        mask = None if shard.mask is None else shard.mask[a:b]
        writer.write(shard.tokens[a:b], np.diff(shard.offsets[first : stop + 1]), mask=mask)
        first = stop
