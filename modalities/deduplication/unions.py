"""Which documents are connected by equal keys: key files on disk, and union-find over arrays.

A node is a document. `KeyFiles` holds its 128-bit text hash and band keys as raw files, so that one file is looked at a
time; `Unions` joins the nodes of equal keys through a hash table of at most `KEYS_AT_ONCE` keys (200 MB). Files with
more keys are gone through several times, each time for the keys of one prefix.
"""

import math
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from modalities.deduplication import kernels
from modalities.deduplication.kernels import I64, U64

KEYS_AT_ONCE = 3_500_000
"""Expected number of keys in the table; it has 2.4 times as many places, as prefixes are not used quite evenly."""
_ROWS_AT_ONCE = 1_000_000
TEXT = "text"


class KeyFiles:
    """Files of keys in a scratch folder: the text hash of every node, and band keys of those that have a signature."""

    def __init__(self, folder: Path, *, bands: int) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.bands = [f"band_{band:03d}" for band in range(bands)]
        self.num_nodes = 0
        self._files: dict[str, BinaryIO] = {name: self._path(name).open("wb") for name in (TEXT, "signed", *self.bands)}

    def add(self, texts: U64, *, signed: np.ndarray[Any, np.dtype[np.bool_]], bands: U64) -> None:
        """Append nodes: (n, 2) text hashes, which of them have a signature, and (signed, bands, 2) keys."""
        np.ascontiguousarray(texts).tofile(self._files[TEXT])
        (np.flatnonzero(signed) + self.num_nodes).astype(np.int64).tofile(self._files["signed"])
        for band, name in enumerate(self.bands):
            np.ascontiguousarray(bands[:, band]).tofile(self._files[name])
        self.num_nodes += len(texts)

    def keys(self, name: str) -> U64:
        """Return the (n, 2) keys of one file as a memory map."""
        path = self._path(name)
        if path.stat().st_size == 0:
            return np.empty((0, 2), np.uint64)
        return np.memmap(path, np.uint64, mode="r").reshape(-1, 2)

    def signed(self) -> I64:
        """Return the nodes that the keys of each band belong to."""
        path = self._path("signed")
        return np.empty(0, np.int64) if path.stat().st_size == 0 else np.memmap(path, np.int64, mode="r")

    def __enter__(self) -> "KeyFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish writing."""
        for file in self._files.values():
            file.close()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.keys"


class Unions:
    """Sets of nodes 0 to n. The smallest node of a set is its root."""

    def __init__(self, num_nodes: int) -> None:
        self.parents: Any = np.arange(num_nodes, dtype=np.int32 if num_nodes < 2**31 else np.int64)

    def join(self, left: I64, right: I64) -> None:
        """Join pairs of nodes."""
        kernels.unite(self.parents, left, right)

    def join_equal(self, keys: U64, nodes: I64 | None = None, *, keys_at_once: int = KEYS_AT_ONCE) -> None:
        """Join the nodes whose keys are equal; row i of `keys` belongs to `nodes[i]`, or to node i."""
        bits = max(0, math.ceil(math.log2(max(1, len(keys)) / keys_at_once)))
        expected = len(keys) / 2**bits
        places = 1 << max(4, math.ceil(math.log2(1.8 * expected + 10 * math.sqrt(expected) + 16)))
        for part in range(1 << bits):
            table = np.zeros((places, 3), np.uint64)
            for start in range(0, len(keys), _ROWS_AT_ONCE):
                some = np.ascontiguousarray(keys[start : start + _ROWS_AT_ONCE])
                of = (
                    np.arange(start, start + len(some)) if nodes is None else np.array(nodes[start : start + len(some)])
                )
                kernels.unite_equal(self.parents, of, some, table, bits, part)

    def roots(self) -> Any:
        """Return every node's root: a view, which further joins change."""
        kernels.flatten(self.parents)
        return self.parents
