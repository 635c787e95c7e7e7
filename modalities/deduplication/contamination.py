"""Evaluation items in training text: n words in a row that both have, after the normalisation that MinHash uses too.

An item is a line of a text file, or a record of a JSONL file. Of a record, every text counts by itself, and the first
(usually the question) also joined with each of the others (answers), so that n-grams over the seam are found, as
datatrove's `NGramsDecontIndexer` does. Items of fewer than n words cannot be found; they are counted.
"""

import dataclasses
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from modalities.deduplication.kernels import I64, U64
from modalities.deduplication.minhash import shingles
from modalities.deduplication.words import Splitter, Words
from modalities.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """N-grams of all tasks. `hashes` is sorted; `tasks[i]` is the number of the task that `hashes[i]` belongs to."""

    ngram: int
    names: tuple[str, ...]
    hashes: U64
    tasks: I64
    items: Mapping[str, int]
    too_short: Mapping[str, int]


def index(tasks: Mapping[str, Path], *, ngram: int, splitter: Splitter) -> Index:
    """Read task files and return their n-grams."""
    names = tuple(sorted(tasks))
    hashes: list[U64] = []
    items, too_short = {}, {}
    for name in names:
        texts = list(_items(tasks[name]))
        joined = [text for item in texts for text in _spans(item)]
        found, ends = shingles(splitter.split(pa.array(joined, pa.large_string())), ngram=ngram, hash="xxhash64")
        last = np.cumsum([len(_spans(item)) for item in texts]) - 1
        per_item = np.diff(ends[last] if texts else np.empty(0, np.int64), prepend=0)
        items[name], too_short[name] = len(texts), int((per_item == 0).sum())
        hashes.append(np.unique(found))
    numbers = np.repeat(np.arange(len(names)), [len(part) for part in hashes])
    joined_hashes = np.concatenate([np.empty(0, np.uint64), *hashes])
    order = np.argsort(joined_hashes, kind="stable")
    return Index(
        ngram=ngram,
        names=names,
        hashes=joined_hashes[order],
        tasks=numbers[order],
        items=items,
        too_short=too_short,
    )


def contaminated(words: Words, *, known: Index) -> list[tuple[str, ...]]:
    """Return per document the names of the tasks of which it contains n words in a row."""
    found, ends = shingles(words, ngram=known.ngram, hash="xxhash64")
    names: list[set[str]] = [set() for _ in range(len(words.ends))]
    left = np.searchsorted(known.hashes, found, side="left")
    right = np.searchsorted(known.hashes, found, side="right")
    hits = np.flatnonzero(right > left)
    for doc, hit in zip(np.searchsorted(ends, hits, side="right").tolist(), hits.tolist(), strict=True):
        names[doc].update(known.names[task] for task in known.tasks[left[hit] : right[hit]].tolist())
    return [tuple(sorted(found)) for found in names]


def _spans(item: list[str]) -> list[str]:
    return item + [f"{item[0]} {other}" for other in item[1:]]


def _items(path: Path) -> Iterator[list[str]]:
    """Yield the texts of each item of a file."""
    name = path.name.removesuffix(".gz")
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                if name.endswith((".jsonl", ".ndjson")):
                    texts = [text for text in _texts(_record(path, number, line)) if text.strip()]
                    if texts:
                        yield texts
                else:
                    yield [line]
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise InputError(f"{path}: expected evaluation items in UTF-8, got {error}; give a readable file") from None


def _record(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise InputError(
            f"{path}:{number}: expected a JSON record, got {line[:60]!r} ({error}); mend the line"
        ) from None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
