"""Weights tensor by tensor into sharded safetensors, with a digest of each. Memory: the largest tensor.

The file is written as the format says (8 bytes header length, JSON header, data), because the library's own writer wants all
tensors of a file in memory. What is written is read back and compared by digest.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import torch
import xxhash
from torch import Tensor

from modalities.errors import StoreError
from modalities.manifest import write_json

NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
PIECE_ELEMENTS = 16 << 20


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What was written."""

    digests: Mapping[str, str]
    """Name -> xxh3_128 of the tensor's bytes as written."""
    files: Mapping[str, str]
    """Name -> file."""
    num_bytes: int


def write_weights(
    folder: Path,
    read: Callable[[str], Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    dtype: torch.dtype,
    max_shard_bytes: int,
    progress: Callable[[int, int], None],
) -> Written:
    """Write the tensors `shapes` names, in order; `read` returns one of them."""
    sizes = {name: _count(shape) * dtype.itemsize for name, shape in shapes.items()}
    total, done = sum(sizes.values()), 0
    shards = list(_shards(sizes, max_shard_bytes))
    digests: dict[str, str] = {}
    files: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = "model.safetensors"
        if len(shards) > 1:
            file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        with (folder / file).open("wb", buffering=0) as out:
            _write(out, _header({name: shapes[name] for name in names}, sizes, dtype))
            for name in names:
                digests[name] = _write_tensor(out, read(name), shapes[name], dtype, name)
                files[name] = file
                done += sizes[name]
                progress(done, total)
            os.fsync(out.fileno())
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
        write_json(folder / "model.safetensors.index.json", index)
    return Written(digests=digests, files=files, num_bytes=total)


def _shards(sizes: Mapping[str, int], limit: int) -> Iterator[list[str]]:
    """Fill files in order; a file is closed when the next tensor would take it over the limit."""
    names: list[str] = []
    filled = 0
    for name, size in sizes.items():
        if names and filled + size > limit:
            yield names
            names, filled = [], 0
        names.append(name)
        filled += size
    yield names


def _header(shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int], dtype: torch.dtype) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        entries[name] = {"dtype": NAMES[dtype], "shape": shape, "data_offsets": [offset, offset + sizes[name]]}
        offset += sizes[name]
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)  # data starts at a multiple of 8, for readers that map it
    return len(text).to_bytes(8, "little") + text


def _write_tensor(out: BinaryIO, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, name: str) -> str:
    if tuple(tensor.shape) != shape:
        raise StoreError(f"{name}: expected shape {shape} as its config says, got {tuple(tensor.shape)}; train again")
    digest = xxhash.xxh3_128()
    flat = tensor.contiguous().view(-1)
    for start in range(0, flat.numel(), PIECE_ELEMENTS):
        piece = flat[start : start + PIECE_ELEMENTS].to(dtype)
        data = memoryview(piece.view(torch.uint8).numpy().data)
        digest.update(data)
        _write(out, data)
    return digest.hexdigest()


def _write(out: BinaryIO, data: bytes | memoryview) -> None:
    """Write all of it: a raw file may take less than it is given (2 GiB at most on Linux)."""
    view = memoryview(data)
    while view:
        view = view[out.write(view) :]


def verify_weights(folder: Path, written: Written) -> None:
    """Read the files again and raise `StoreError` unless every tensor has the digest of what was to be written.

    Plain reads, not a memory map: mapped pages would count as this process's memory.
    """
    missing = dict(written.digests)
    for file in sorted(set(written.files.values())):
        with (folder / file).open("rb") as source:
            length = int.from_bytes(source.read(8), "little")
            header = json.loads(source.read(length))
            for name, entry in header.items():
                if name == "__metadata__":
                    continue
                start, end = entry["data_offsets"]
                got = _digest(source, 8 + length + start, end - start)
                if got != missing.pop(name, None):
                    raise StoreError(
                        f"{folder / file}: {name}: expected the digest that was written, got {got}; check the disk"
                    )
    if missing:
        raise StoreError(f"{folder}: expected tensors {', '.join(sorted(missing))}, got none; check the disk")


def _digest(source: BinaryIO, start: int, length: int) -> str:
    digest = xxhash.xxh3_128()
    source.seek(start)
    while length > 0:
        piece = source.read(min(length, 4 * PIECE_ELEMENTS))
        if not piece:
            break
        digest.update(piece)
        length -= len(piece)
    return digest.hexdigest()


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
