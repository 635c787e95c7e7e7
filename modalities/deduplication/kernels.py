"""Compiled loops: white-space chunks to ids, xxHash64 over slices, MinHash minima, band keys, union-find.

Each has an obvious slow equivalent in the tests. Compiled code is cached beside this file or, where that is read-only,
in Numba's user-wide folder; where neither can be written, it is compiled anew in each process (about 10 s).
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])
U8 = np.ndarray[Any, np.dtype[np.uint8]]
U64 = np.ndarray[Any, np.dtype[np.uint64]]
I32 = np.ndarray[Any, np.dtype[np.int32]]
I64 = np.ndarray[Any, np.dtype[np.int64]]

MERSENNE = (1 << 61) - 1
_P1 = np.uint64(11400714785074694791)
_P2 = np.uint64(14029467366897019727)
_P3 = np.uint64(1609587929392839161)
_P4 = np.uint64(9650029242287828579)
_P5 = np.uint64(2870177450012600261)
_MASK = np.uint64(MERSENNE)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_FNV_START = np.uint64(14695981039346656037)
_FNV_PRIME = np.uint64(1099511628211)


def _compile(function: Function) -> Function:
    try:
        return cast(Function, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # no place for the cache can be written
        return cast(Function, numba.njit(nogil=True)(function))


# --- xxHash64 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md) ----------------------------------------


@_compile
def _rotate(x: np.uint64, bits: int) -> np.uint64:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@_compile
def _read4(data: U8, at: int) -> np.uint64:
    return (
        np.uint64(data[at])
        | np.uint64(data[at + 1]) << np.uint64(8)
        | np.uint64(data[at + 2]) << np.uint64(16)
        | np.uint64(data[at + 3]) << np.uint64(24)
    )


@_compile
def _read8(data: U8, at: int) -> np.uint64:
    return _read4(data, at) | _read4(data, at + 4) << np.uint64(32)


@_compile
def _round(lane: np.uint64, x: np.uint64) -> np.uint64:
    return _rotate(lane + x * _P2, 31) * _P1


@_compile
def _stripes(data: U8, start: int, stop: int, seed: np.uint64) -> np.uint64:
    a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
    for at in range(start, stop - 31, 32):
        a = _round(a, _read8(data, at))
        b = _round(b, _read8(data, at + 8))
        c = _round(c, _read8(data, at + 16))
        d = _round(d, _read8(data, at + 24))
    h = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
    zero = np.uint64(0)
    h = (h ^ _round(zero, a)) * _P1 + _P4
    h = (h ^ _round(zero, b)) * _P1 + _P4
    h = (h ^ _round(zero, c)) * _P1 + _P4
    return (h ^ _round(zero, d)) * _P1 + _P4


@_compile
def xxh64(data: U8, start: int, stop: int, seed: np.uint64) -> np.uint64:
    """Return xxHash64 of `data[start:stop]`."""
    length = stop - start
    h = _stripes(data, start, stop, seed) if length >= 32 else seed + _P5
    h += np.uint64(length)
    at = stop - length % 32
    while at + 8 <= stop:
        h = _rotate(h ^ _round(np.uint64(0), _read8(data, at)), 27) * _P1 + _P4
        at += 8
    if at + 4 <= stop:
        h = _rotate(h ^ _read4(data, at) * _P1, 23) * _P2 + _P3
        at += 4
    while at < stop:
        h = _rotate(h ^ np.uint64(data[at]) * _P5, 11) * _P1
        at += 1
    h = (h ^ h >> np.uint64(33)) * _P2
    h = (h ^ h >> np.uint64(29)) * _P3
    return h ^ h >> np.uint64(32)


# --- white-space chunks -> ids ----------------------------------------------------------------------------------------


@_compile
def _blank(data: U8, at: int, stop: int) -> int:
    """Return the length in bytes of the white-space character at `at`, 0 if it is none; the same set as `str.split`."""
    c = data[at]
    if c < 128:
        return 1 if c == 32 or 9 <= c <= 13 or 28 <= c <= 31 else 0
    if c == 0xC2:
        return 2 if at + 1 < stop and (data[at + 1] == 0x85 or data[at + 1] == 0xA0) else 0
    if at + 2 >= stop:
        return 0
    b, d = data[at + 1], data[at + 2]
    if c == 0xE2:
        first = b == 0x80 and (0x80 <= d <= 0x8A or 0xA8 <= d <= 0xA9 or d == 0xAF)
        return 3 if first or (b == 0x81 and d == 0x9F) else 0
    if c == 0xE3:
        return 3 if b == 0x80 and d == 0x80 else 0
    return 3 if c == 0xE1 and b == 0x9A and d == 0x80 else 0


@_compile
def _equal(data: U8, start: int, stop: int, blob: U8, at: int, length: int) -> bool:
    if stop - start != length:
        return False
    for i in range(length):  # noqa: SIM110
        if data[start + i] != blob[at + i]:
            return False
    return True


@_compile
def intern(
    data: U8, offsets: I64, slots: I32, hashes: U64, blob: U8, bounds: I64, out: I32, ends: I64, state: I64
) -> bool:
    """Write the id of every white-space chunk of documents to `out`; give unseen chunks the next ids.

    Chunk `i` is `blob[bounds[i]:bounds[i + 1]]`; `slots` is an open-addressing table of ids (-1: free). `ends[d]`
    becomes the end of document d in `out`. `state` is [document, byte, chunks written, ids given]. Returns False when
    a table is full: grow it and call again, `state` says where to go on.
    """
    doc, at, written, known = state[0], state[1], state[2], state[3]
    mask = len(slots) - 1
    while doc < len(offsets) - 1:
        stop = offsets[doc + 1]
        while at < stop:
            c = data[at]
            width = 0 if 32 < c < 128 else _blank(data, at, stop)
            if width > 0:
                at += width
                continue
            start, h = at, _FNV_START
            while at < stop:
                c = data[at]
                if (c <= 32 or c >= 128) and _blank(data, at, stop) > 0:
                    break
                h = (h ^ np.uint64(c)) * _FNV_PRIME
                at += 1
            h ^= h >> np.uint64(32)
            slot = np.int64(h & np.uint64(mask))
            while True:
                found = slots[slot]
                if found < 0 or (
                    hashes[found] == h
                    and _equal(data, start, at, blob, bounds[found], bounds[found + 1] - bounds[found])
                ):
                    break
                slot = (slot + 1) & mask
            if found < 0:
                size = at - start
                full = known >= len(hashes) or known + 1 >= len(bounds) or 2 * known >= len(slots)
                if full or bounds[known] + size > len(blob):
                    state[0], state[1], state[2], state[3] = doc, start, written, known
                    return False
                found = known
                slots[slot], hashes[known] = known, h
                blob[bounds[known] : bounds[known] + size] = data[start:at]
                bounds[known + 1] = bounds[known] + size
                known += 1
            out[written] = found
            written += 1
        ends[doc] = written
        doc += 1
    state[0], state[1], state[2], state[3] = doc, at, written, known
    return True


@_compile
def rehash(slots: I32, hashes: U64, known: int) -> None:
    """Enter ids 0 to `known` into an empty table."""
    mask = len(slots) - 1
    for i in range(known):
        slot = np.int64(hashes[i] & np.uint64(mask))
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = i


@_compile
def spell(chunks: I32, ends: I64, words: U8, bounds: I64, data: U8, starts: I64, word_ends: I64) -> int:
    """Write the words of chunks to `data`, each followed by a blank; return their number.

    The words of chunk `i` are `words[bounds[i]:bounds[i + 1]]`. `starts[w]` is where word w starts, and one more entry
    says where the last ends; `word_ends[d]` is the number of words in documents 0 to d.
    """
    at, count, first = 0, 0, 0
    for doc in range(len(ends)):
        for i in range(first, ends[doc]):
            fresh = True
            for j in range(bounds[chunks[i]], bounds[chunks[i] + 1]):
                if fresh:
                    starts[count] = at
                    count += 1
                data[at] = words[j]
                fresh = words[j] == 32
                at += 1
        first = ends[doc]
        word_ends[doc] = count
    starts[count] = at
    return count


# --- shingles and signatures ------------------------------------------------------------------------------------------


@_compile
def shingle_hashes(data: U8, starts: I64, ends: I64, n: int, out: U64, out_ends: I64) -> int:
    """Write xxHash64 of every n words in a row (joined by single blanks) of each document; return their number."""
    count, first = 0, 0
    for doc in range(len(ends)):
        for i in range(first, ends[doc] - n + 1):
            out[count] = xxh64(data, starts[i], starts[i + n] - 1, np.uint64(0))
            count += 1
        first = ends[doc]
        out_ends[doc] = count
    return count


@_compile
def minima(shingles: U64, ends: I64, a: U64, b: U64, out: U64) -> None:
    """Write min over shingles x of (a x + b mod 2^64) mod (2^61 - 1), per document and hash.

    Rows of documents without a shingle hold 2^64 - 1. The remainder needs no division: the high three bits are added
    to the low 61, and 2^61 - 1 taken away once if that still fits.
    """
    first = 0
    for doc in range(len(ends)):
        row = out[doc]
        row[:] = _ALL
        for i in range(first, ends[doc]):
            x = shingles[i]
            for h in range(len(a)):
                v = x * a[h] + b[h]
                v = (v & _MASK) + (v >> np.uint64(61))
                row[h] = min(row[h], v, v - _MASK)  # v - _MASK wraps to a huge number where v is smaller
        first = ends[doc]


@_compile
def band_keys(signatures: U8, width: int, out: U64) -> None:
    """Write a 128-bit key of each band to (D, bands, 2): xxHash64 of its `width` bytes with seeds 0 and 1."""
    for doc in range(out.shape[0]):
        for band in range(out.shape[1]):
            start = (doc * out.shape[1] + band) * width
            out[doc, band, 0] = xxh64(signatures, start, start + width, np.uint64(0))
            out[doc, band, 1] = xxh64(signatures, start, start + width, np.uint64(1))


# --- clusters ---------------------------------------------------------------------------------------------------------


@_compile
def _unite(parents: Any, x: Any, y: Any) -> None:
    while parents[x] != x:
        parents[x] = parents[parents[x]]
        x = parents[x]
    while parents[y] != y:
        parents[y] = parents[parents[y]]
        y = parents[y]
    if x < y:
        parents[y] = x
    else:
        parents[x] = y


@_compile
def unite(parents: Any, left: I64, right: I64) -> None:
    """Join the sets of `left[i]` and `right[i]`; the smallest member of a set is its root."""
    for i in range(len(left)):
        _unite(parents, left[i], right[i])


@_compile
def unite_equal(parents: Any, nodes: Any, keys: U64, table: U64, bits: int, part: int) -> None:
    """Join nodes whose 128-bit keys (rows of `keys`) are equal, of those keys whose first `bits` bits are `part`.

    `table` (power of two, 3) is zeros and must have more rows than there are distinct keys: upper half, lower half,
    node + 1.
    """
    mask = np.uint64(table.shape[0] - 1)
    for i in range(len(nodes)):
        high, low = keys[i, 0], keys[i, 1]
        if bits > 0 and high >> np.uint64(64 - bits) != np.uint64(part):
            continue
        slot = low & mask
        while table[slot, 2] != 0 and (table[slot, 0] != high or table[slot, 1] != low):
            slot = (slot + np.uint64(1)) & mask
        if table[slot, 2] == 0:
            table[slot, 0], table[slot, 1], table[slot, 2] = high, low, np.uint64(nodes[i] + 1)
        else:
            _unite(parents, np.int64(table[slot, 2]) - 1, np.int64(nodes[i]))


@_compile
def flatten(parents: Any) -> None:
    """Replace every entry by its root. Parents come before their children, so that one pass is enough."""
    for i in range(len(parents)):
        parents[i] = parents[parents[i]]
