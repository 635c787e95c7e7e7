"""Import of Modalities' packed files (`.pbin`).

Layout: 8 bytes data length, 4 bytes token width (1, 2 or 4), the data (unsigned ids, little-endian, document after
document), then a pickle of `list[tuple[int, int]]`: offset within the data and length of each document, in bytes. The
pickle is not unpickled: its opcodes are read here, and any that a list of pairs of integers does not need is refused.
"""

import pickletools
import struct
from pathlib import Path
from typing import Any

import numpy as np

from modalities.errors import InputError
from modalities.tokens import Array, ShardWriter, Sidecar, token_dtype

HEADER = struct.Struct("<QI")
CHUNK_TOKENS = 1 << 22
_IGNORED = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"}
_INTEGERS = {"BININT", "BININT1", "BININT2", "LONG1", "LONG", "INT"}
_MARK = object()


def import_pbin(path: Path, out: Path, *, repair: bool = False, tokenizer: str | None = None) -> Sidecar:
    """Write a `.pbin` as a token shard `out`.

    `repair`: place documents by their lengths alone, for files that `merge_packed_data` wrote with wrong offsets.
    Memory: 16 bytes per document and a few for the index's text. Raises `InputError` for anything but the layout above.
    """
    data, lengths = read_pbin(path, repair=repair)
    largest = max((int(data[i : i + CHUNK_TOKENS].max()) for i in range(0, len(data), CHUNK_TOKENS)), default=0)
    if largest >= 2**31:
        raise InputError(f"{path}: expected ids below 2^31, got {largest}; the shard format knows no wider type")
    with ShardWriter(out, dtype=token_dtype(largest + 1), tokenizer=tokenizer) as writer:
        ends = np.cumsum(lengths)
        first = start = 0
        while first < len(lengths):
            last = max(first + 1, int(np.searchsorted(ends, start + CHUNK_TOKENS, side="right")))
            writer.write(data[start : int(ends[last - 1])], lengths[first:last])
            first, start = last, int(ends[last - 1])
        return writer.finish()


def read_pbin(path: Path, *, repair: bool = False) -> tuple[Array, Array]:
    """Return the mapped ids and the int64 lengths of the documents, in tokens."""
    if not path.is_file():
        raise InputError(f"{path}: expected a packed file, got nothing there; mend the path")
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(HEADER.size)
        if len(header) < HEADER.size:
            raise InputError(f"{path}: expected a packed file of 12 bytes or more, got {size}; pack it again")
        num_bytes, width = HEADER.unpack(header)
        if width not in (1, 2, 4) or num_bytes % width or HEADER.size + num_bytes > size:
            raise InputError(
                f"{path}: expected {num_bytes} bytes of {width}-byte tokens after the header, got {size - HEADER.size} "
                "bytes in all; it is truncated or not a .pbin, pack it again"
            )
        file.seek(HEADER.size + num_bytes)
        index = _read_pairs(file.read(), path)
    offsets, lengths = index[:, 0], index[:, 1]
    _check(path, num_bytes, width, offsets, lengths, repair=repair)
    dtype = np.dtype(f"<u{width}")
    empty = num_bytes == 0
    data = np.empty(0, dtype) if empty else np.memmap(path, dtype, "r", HEADER.size, (num_bytes // width,))
    return data, lengths // width


def _check(path: Path, num_bytes: int, width: int, offsets: Array, lengths: Array, *, repair: bool) -> None:
    total = int(lengths.sum())
    if (len(lengths) and int(lengths.min()) < 0) or np.any(lengths % width) or total != num_bytes:
        raise InputError(f"{path}: expected documents that fill {num_bytes} bytes, got {total}; pack it again")
    expected = np.zeros(len(lengths), np.int64)
    np.cumsum(lengths[:-1], out=expected[1:])
    wrong = np.flatnonzero(offsets != expected)
    if len(wrong) and not repair:
        first = int(wrong[0])
        raise InputError(
            f"{path}: expected document {first} at byte {expected[first]}, got {offsets[first]} "
            f"({len(wrong)} are misplaced); files that were merged are known for this: import with repair"
        )


def _read_pairs(data: bytes, path: Path) -> Array:
    """Return the pairs of a pickled list, int64 (N, 2), without unpickling it."""
    stack: list[Any] = []
    pairs: list[tuple[int, int]] = []
    try:
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            if name in _INTEGERS:
                stack.append(int(argument or 0))
            elif name == "MARK":
                stack.append(_MARK)
            elif name in ("TUPLE2", "TUPLE"):
                second, first = stack.pop(), stack.pop()
                if name == "TUPLE" and stack.pop() is not _MARK:
                    raise ValueError("a tuple that is no pair")
                stack.append((first, second))
            elif name in ("APPENDS", "APPEND"):
                _append(stack, pairs, one=name == "APPEND")
            elif name == "EMPTY_LIST" and not stack:
                stack.append(pairs)
            elif name == "STOP" and len(stack) == 1 and stack[0] is pairs:
                return np.array(pairs, np.int64).reshape(-1, 2)
            elif name not in _IGNORED:
                raise ValueError(f"opcode {name}")
    except (ValueError, IndexError, TypeError, OverflowError) as error:
        raise InputError(
            f"{path}: expected a list of pairs of integers as index, got {error}; nothing was run"
        ) from None
    raise InputError(f"{path}: expected a list of pairs of integers as index, got a truncated one; pack it again")


def _append(stack: list[Any], pairs: list[tuple[int, int]], *, one: bool) -> None:
    new: list[Any] = []
    while (one and not new) or (not one and stack[-1] is not _MARK):
        new.append(stack.pop())
    if not one:
        stack.pop()
    for pair in reversed(new):
        if not (isinstance(pair, tuple) and all(type(number) is int for number in pair)):
            raise ValueError(f"an entry {pair!r:.40}")
        pairs.append(pair)
    if len(stack) != 1 or stack[0] is not pairs:
        raise ValueError("an entry outside of the list")
