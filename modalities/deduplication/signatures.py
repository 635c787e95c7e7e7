"""Plan node `deduplication.signatures`: what each kept document is compared by, row-aligned with ingestion.

`signatures.parquet` (all columns are null where filtering dropped the document):

| column | what |
|---|---|
| id | of the document, for the choice of survivors |
| text_high, text_low | 128-bit hash (XXH3) of the text |
| bands | 128-bit keys of the bands of the MinHash signature, little-endian; also null for fewer than n words |
| contaminated | names of tasks whose items it contains, joined by blanks; null if none |
| excerpt | first characters, for the report of clusters |

Only `method: minhash` has `bands`. The text is that of scores (rewritten where a rule rewrites), before PII masking. Memory:
one row group of text (16 MB) and a few times that in word positions, the memo of words (under 300 MB), and spaCy.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from modalities.deduplication import contamination, minhash
from modalities.deduplication.config import ClustersSection, SignaturesSection
from modalities.deduplication.kernels import U64
from modalities.deduplication.words import BATCH_BYTES, ChunkMemo, Splitter, Words, splitter, text_bytes
from modalities.documents import GroupReader, GroupWriter, read_groups
from modalities.work import Result, Work

FILE = "signatures.parquet"
EXCERPT_CHARACTERS = 160
Bools = np.ndarray[Any, np.dtype[np.bool_]]


def run_unit(work: Work[SignaturesSection]) -> Result:
    """Write the signatures of one unit."""
    section = work.section
    split = splitter(section.language, cache=work.cache / "deduplication") if _needs_words(section) else None
    known = _index(section, split)
    counts = {"documents": 0, "signatures": 0} | {f"contaminated.{name}": 0 for name in section.tasks}
    total = GroupReader(work.inputs["ingestion"].folder / "documents.parquet").num_rows
    with GroupWriter(work.folder / FILE, schema(section)) as writer:
        for group in read_groups(work.inputs):
            table = _describe(group.ids, group.texts, section=section, split=split, known=known)
            writer.write(table)
            _count(table, counts, section)
            work.progress.update(group.first_row + table.num_rows, total)
    if isinstance(split, ChunkMemo):
        split.save()
    info: dict[str, Any] = {"words": None if split is None else split.name}
    if known is not None:
        info |= {"items": dict(known.items), "items_too_short": dict(known.too_short)}
    return Result(content=writer.content(), counts=counts, info=info)


def parameters(section: SignaturesSection | ClustersSection) -> minhash.Parameters:
    """Return the MinHash parameters of a section."""
    return minhash.Parameters(
        ngram=section.ngram,
        buckets=section.buckets,
        hashes_per_bucket=section.hashes_per_bucket,
        seed=section.seed,
        hash=section.hash,
    )


def schema(section: SignaturesSection) -> pa.Schema:
    """Return the schema of `signatures.parquet`."""
    columns = [("id", pa.string()), ("text_high", pa.uint64()), ("text_low", pa.uint64())]
    if section.method == "minhash":
        columns.append(("bands", pa.large_binary()))
    return pa.schema([*columns, ("contaminated", pa.string()), ("excerpt", pa.string())])


def text_hashes(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the upper and lower 64 bits of each text's XXH3 hash; null for null."""
    data, offsets = text_bytes(texts)
    view, bounds = data.data, offsets.tolist()
    digests = b"".join([xxhash.xxh3_128_digest(view[start:stop]) for start, stop in itertools.pairwise(bounds)])
    pairs = np.frombuffer(digests, np.dtype(">u8")).astype(np.uint64).reshape(-1, 2)
    missing = texts.is_null().to_numpy(zero_copy_only=False)
    return pa.array(pairs[:, 0], mask=missing), pa.array(pairs[:, 1], mask=missing)


def batches(texts: pa.Array) -> Iterator[pa.Array]:
    """Yield slices of about 4 MB of text, so that word positions stay small beside the text."""
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    number = (np.cumsum(lengths) - 1).clip(0) // BATCH_BYTES
    edges = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(texts)]
    for start, stop in itertools.pairwise(edges):
        if stop > start:
            yield texts.slice(start, stop - start)


def _needs_words(section: SignaturesSection) -> bool:
    return section.method == "minhash" or bool(section.tasks)


def _index(section: SignaturesSection, split: Splitter | None) -> contamination.Index | None:
    if not section.tasks or split is None:
        return None
    paths: dict[str, Path] = {name: task.path for name, task in section.tasks.items()}
    return contamination.index(paths, ngram=section.contamination_ngram, splitter=split)


def _describe(
    ids: pa.Array,
    texts: pa.Array,
    *,
    section: SignaturesSection,
    split: Splitter | None,
    known: contamination.Index | None,
) -> pa.Table:
    """Return the rows of one row group."""
    high, low = text_hashes(texts)
    columns: dict[str, Any] = {
        "id": pc.if_else(texts.is_valid(), ids, pa.scalar(None, pa.string())),
        "text_high": high,
        "text_low": low,
        "excerpt": pc.utf8_slice_codeunits(texts, 0, EXCERPT_CHARACTERS).cast(pa.string()),
        "contaminated": pa.nulls(len(texts), pa.string()),
    }
    if split is not None:
        parts = [_compare(split.split(part), section=section, known=known) for part in batches(texts)]
        for name, kind in (("bands", pa.large_binary()), ("contaminated", pa.string())):
            if not parts or name in parts[0]:
                columns[name] = pa.chunked_array([part[name] for part in parts], kind)
    return pa.table(columns)


def _compare(words: Words, *, section: SignaturesSection, known: contamination.Index | None) -> dict[str, pa.Array]:
    """Return the columns that depend on words."""
    columns: dict[str, pa.Array] = {}
    if section.method == "minhash":
        columns["bands"] = bands(words, minhash_parameters=parameters(section))
    if known is not None:
        tasks = contamination.contaminated(words, known=known)
        columns["contaminated"] = pa.array([" ".join(names) or None for names in tasks], pa.string())
    return columns


def bands(words: Words, *, minhash_parameters: minhash.Parameters) -> pa.Array:
    """Return the keys of the bands of each document as large_binary; null for documents of too few words."""
    found = minhash.signatures(words, parameters=minhash_parameters)
    keys = minhash.band_keys(found, buckets=minhash_parameters.buckets)[found.has].astype("<u8")
    offsets = np.zeros(len(found.has) + 1, np.int64)
    np.cumsum(found.has * (16 * minhash_parameters.buckets), out=offsets[1:])
    buffers = [np.packbits(found.has, bitorder="little"), offsets, keys.reshape(-1)]
    return pa.Array.from_buffers(pa.large_binary(), len(found.has), [pa.py_buffer(part) for part in buffers])


def band_keys(column: pa.ChunkedArray, *, buckets: int) -> tuple[Bools, U64]:
    """Return which documents have keys, and these as (number of such documents, buckets, 2)."""
    parts = [np.empty(0, np.uint8)]
    for chunk in column.chunks:
        _, offsets, data = chunk.buffers()
        edges = np.frombuffer(offsets, np.int64)
        if data is not None:
            first, last = edges[chunk.offset], edges[chunk.offset + len(chunk)]
            parts.append(np.frombuffer(data, np.uint8)[first:last])
    keys = np.concatenate(parts).view("<u8").astype(np.uint64, copy=False)
    return column.is_valid().to_numpy(), keys.reshape(-1, buckets, 2)


def _count(table: pa.Table, counts: dict[str, int], section: SignaturesSection) -> None:
    counts["documents"] += table.num_rows - table.column("text_high").null_count
    if section.method == "minhash":
        counts["signatures"] += table.num_rows - table.column("bands").null_count
    if section.tasks:
        for names in table.column("contaminated").drop_null().to_pylist():
            for name in names.split(" "):
                counts[f"contaminated.{name}"] += 1
