"""Documents on disk: one Parquet writer and the readers that look at text through the masks of later stages.

Text is written once, at ingestion (`documents.parquet`). Every later stage writes a file with the same rows in the same row
groups: scores, decisions, rewritten text. A row group is the unit of work of every data stage: at most `GROUP_ROWS` rows
and about `GROUP_BYTES` of text, so that memory is bounded by it and not by the file.

| file | written by | columns |
|---|---|---|
| documents.parquet | ingestion | `DOCUMENTS` |
| scores.parquet | filtering.scores | a column per score; `text`: rewritten text, null where it is as ingested |
| filtering.parquet | filtering | keep, reason; `masked`: text after PII masking, null where nothing was masked |
| deduplication.parquet | deduplication | keep, reason, cluster, cluster_size |
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from modalities.errors import StoreError
from modalities.work import Upstream

GROUP_ROWS = 4096
GROUP_BYTES = 16_000_000
ZSTD_LEVEL = 3

DOCUMENTS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("metadata", pa.string()),
    ]
)
"""`id`: the record's own id, else `<path>#<position>`. `position`: where the record starts in the uncompressed file (byte offset
for JSONL, text and WARC, row number for Parquet); rows are sorted by it. `metadata`: a JSON object of all other fields."""

DECISION_FIELDS = [pa.field("keep", pa.bool_(), nullable=False), pa.field("reason", pa.string())]
"""First columns of every decision file. `reason` is null exactly where `keep` is true."""


class GroupWriter:
    """Write a Parquet file row group by row group, and hash its logical contents on the way.

    The digest depends on schema, rows and their order; not on row groups, compression or the writer's version.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema
        self.num_rows = 0
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", compression_level=ZSTD_LEVEL, version="2.6")
        self._hashes = {field.name: tuple(xxhash.xxh3_128() for _ in range(3)) for field in schema}

    def write(self, table: pa.Table | pa.RecordBatch) -> None:
        """Append one row group. Columns are taken by name and cast to the schema."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        table = table.select(self.schema.names).cast(self.schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self.num_rows += table.num_rows
        for field in self.schema:
            _hash_column(table.column(field.name), self._hashes[field.name])

    def content(self) -> str:
        """Return the digest of what was written so far."""
        total = xxhash.xxh3_128()
        total.update(str(self.num_rows).encode())
        for field in self.schema:
            total.update(f"{field.name}:{field.type}".encode())
            for part in self._hashes[field.name]:
                total.update(part.digest())
        return total.hexdigest()

    def __enter__(self) -> "GroupWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()


def _hash_column(column: pa.ChunkedArray, hashes: tuple[Any, ...]) -> None:
    validity, lengths, data = hashes
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            chunk = chunk.dictionary_decode()
        validity.update(np.ascontiguousarray(chunk.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8))
        if (
            pa.types.is_list(chunk.type)
            or pa.types.is_large_list(chunk.type)
            or pa.types.is_fixed_size_list(chunk.type)
        ):
            lengths.update(
                np.ascontiguousarray(
                    pc.fill_null(pc.list_value_length(chunk), 0).to_numpy(zero_copy_only=False), np.int64
                )
            )
            _hash_column(pa.chunked_array([chunk.flatten()]), hashes)
        elif (
            pa.types.is_string(chunk.type)
            or pa.types.is_large_string(chunk.type)
            or pa.types.is_large_binary(chunk.type)
        ):
            filled = pc.fill_null(chunk, b"" if pa.types.is_large_binary(chunk.type) else "").cast(pa.large_binary())
            offsets = np.frombuffer(filled.buffers()[1], np.int64)[filled.offset : filled.offset + len(filled) + 1]
            lengths.update(np.ascontiguousarray(np.diff(offsets)))
            values = filled.buffers()[2]
            if values is not None and len(filled):
                data.update(memoryview(values)[int(offsets[0]) : int(offsets[-1])])
        elif len(chunk):
            zero = False if pa.types.is_boolean(chunk.type) else 0
            data.update(np.ascontiguousarray(pc.fill_null(chunk, zero).to_numpy(zero_copy_only=False)))


class GroupReader:
    """Read a Parquet file row group by row group."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = pq.ParquetFile(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise StoreError(f"{path}: not a readable Parquet file ({error}); run `modalities store verify`") from None
        self.path = path

    @property
    def num_groups(self) -> int:
        """Number of row groups."""
        return int(self._file.num_row_groups)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self._file.metadata.num_rows)

    @property
    def columns(self) -> list[str]:
        """Names of the top-level columns."""
        return list(self._file.schema_arrow.names)

    def group(self, index: int, columns: list[str] | None = None) -> pa.Table:
        """Return one row group, all columns or some."""
        return self._file.read_row_group(index, columns=columns, use_threads=False)

    def groups(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield all row groups in order."""
        for index in range(self.num_groups):
            yield self.group(index, columns)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """One row group of documents as a later stage sees it: every row, with its text and whether it is still kept."""

    index: int
    first_row: int
    ids: pa.Array
    texts: pa.Array
    """large_string; the newest rewrite of each text. Rows that are not kept hold null."""
    keep: np.ndarray[Any, np.dtype[np.bool_]]


def read_groups(inputs: Mapping[str, Upstream], *, masked: bool = False) -> Iterator[Group]:
    """Yield the row groups of one unit through whatever masks `inputs` holds.

    Roles that are looked at: `ingestion` (required), `scores`, `filtering`, `deduplication`. With `masked`, PII masking applies.
    Raises `StoreError` where row counts or row groups do not agree.
    """
    readers = {"ingestion": GroupReader(inputs["ingestion"].folder / "documents.parquet")}
    for role in ("scores", "filtering", "deduplication"):
        if role in inputs:
            readers[role] = GroupReader(inputs[role].folder / f"{role}.parquet")
    first = readers["ingestion"]
    for reader in readers.values():
        if (reader.num_rows, reader.num_groups) != (first.num_rows, first.num_groups):
            raise StoreError(
                f"{reader.path}: expected {first.num_rows} rows in {first.num_groups} row groups as in {first.path}, "
                f"got {reader.num_rows} in {reader.num_groups}; run `modalities store verify`"
            )
    row = 0
    for index in range(first.num_groups):
        group = _read_group(readers, index, row, masked)
        row += len(group.keep)
        yield group


def _read_group(readers: Mapping[str, GroupReader], index: int, row: int, masked: bool) -> Group:
    base = readers["ingestion"].group(index, ["id", "text"])
    texts, keep = _one(base, "text"), np.ones(base.num_rows, np.bool_)
    for role in ("filtering", "deduplication"):
        if role in readers:
            keep &= _flags(_one(readers[role].group(index, ["keep"]), "keep"))
    for role, column in (("scores", "text"), ("filtering", "masked")):
        if role in readers and column in readers[role].columns and (role == "scores" or masked):
            rewritten = _one(readers[role].group(index, [column]), column)
            if rewritten.null_count < len(rewritten):
                texts = pc.coalesce(rewritten.cast(pa.large_string()), texts)
    if not keep.all():
        texts = pc.if_else(arrow_mask(keep), texts, pa.scalar(None, pa.large_string()))
    return Group(index=index, first_row=row, ids=_one(base, "id"), texts=texts, keep=keep)


def _one(table: pa.Table, column: str) -> pa.Array:
    chunks = table.column(column)
    if chunks.num_chunks == 1:
        return chunks.chunk(0)  # combine_chunks would copy it
    combined = chunks.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def _flags(column: pa.BooleanArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a column without nulls; `to_numpy` would import pandas, which takes longer than reading a small unit."""
    return np.from_dlpack(column.cast(pa.uint8())).view(np.bool_)


def arrow_mask(keep: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.BooleanArray:
    """Return flags as an Arrow array, without pandas as in `_flags`."""
    bits = np.packbits(keep, bitorder="little")
    return pa.BooleanArray.from_buffers(pa.bool_(), len(keep), [None, pa.py_buffer(bits)])


def decisions(keep: np.ndarray[Any, np.dtype[np.bool_]], reasons: pa.Array) -> pa.Table:
    """Return the first two columns of a decision file; reasons of kept rows become null."""
    mask = pa.array(keep)
    return pa.table({"keep": mask, "reason": pc.if_else(mask, pa.scalar(None, pa.string()), reasons.cast(pa.string()))})


def metadata_json(fields: Mapping[str, Any]) -> str | None:
    """Return extra fields of a record as canonical JSON, or None if there are none."""
    return json.dumps(fields, sort_keys=True, ensure_ascii=False, default=str) if fields else None
