"""Parquet: a row is a record; `position` is its row number in the file.

Memory: a batch of rows at a time, sized by the row group's own figures. A page of the file (1 MiB as files are usually written,
or one value) is held whole.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from modalities.ingestion.config import IngestionSection
from modalities.ingestion.fields import document, finite
from modalities.ingestion.records import CorruptError, Document, Meter, Reject, WrongKindError, excerpt

_BATCH_BYTES = 1 << 24
_BATCH_ROWS = 4096
_READ_BYTES = 1 << 20


def read(
    path: Path, section: IngestionSection, meter: Meter, *, start: int | None, end: int | None
) -> Iterator[Document | Reject]:
    """Yield the rows of row groups `start` to `end`, or of all. A row group that is damaged is lost from there on, and said."""
    assert section.text_key is not None and section.id_key is not None and section.url_key is not None
    keys = {"text_key": section.text_key, "id_key": section.id_key, "url_key": section.url_key}
    try:
        file = pq.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise CorruptError(f"the file's footer cannot be read ({error})", position=0, lost_share=1.0) from None
    with file:
        _check_columns(file.schema_arrow, keys)
        chosen = range(start or 0, file.num_row_groups if end is None else end)
        position = sum(file.metadata.row_group(i).num_rows for i in range(chosen.start))
        for index in chosen:
            yield from _group(file, index, position, keys, section.max_document_bytes)
            group = file.metadata.row_group(index)
            position += group.num_rows
            meter.done_bytes += sum(group.column(c).total_compressed_size for c in range(group.num_columns))


def _check_columns(schema: pa.Schema, keys: dict[str, str]) -> None:
    name = keys["text_key"]
    if name not in schema.names:
        have = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise WrongKindError(f"columns {have}, but no column {name!r}; set `text_key` of the source")
    if schema.names.count(name) > 1:
        raise WrongKindError(f"column {name!r} twice; write the file with columns of different names")
    kind = schema.field(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not _is_text(kind):
        raise WrongKindError(f"column {name!r} of type {kind} instead of text; set `text_key` of the source")


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in (*tests, pa.types.is_string_view, pa.types.is_binary_view))


def _group(
    file: pq.ParquetFile, index: int, position: int, keys: dict[str, str], max_bytes: int
) -> Iterator[Document | Reject]:
    group = file.metadata.row_group(index)
    row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
    rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes))
    done = 0
    batches = file.iter_batches(batch_size=rows, row_groups=[index], use_threads=False)
    while True:
        try:
            batch = next(batches, None)
        except (OSError, pa.ArrowException) as error:
            what = f"rows {position + done} to {position + group.num_rows - 1}: {error}"
            yield Reject(
                position=position + done, reason="corrupt", excerpt=excerpt(what), records=group.num_rows - done
            )
            return
        if batch is None:
            return
        yield from _batch(batch, position + done, keys, max_bytes)
        done += batch.num_rows


def _batch(batch: pa.RecordBatch, position: int, keys: dict[str, str], max_bytes: int) -> Iterator[Document | Reject]:
    """Yield the rows of a batch. Text is decoded value by value, as Parquet does not promise that it is UTF-8."""
    text_key = keys["text_key"]
    texts = _binary(batch.column(text_key))
    others = {name: _values(batch.column(i)) for i, name in enumerate(batch.schema.names) if name != text_key}
    for row in range(batch.num_rows):
        value = texts[row]
        if value.is_valid and len(value.as_buffer()) > max_bytes:
            yield _reject(position + row, "too_large", value)
            continue
        fields: dict[str, Any] = {name: values[row] for name, values in others.items()}
        try:
            fields[text_key] = value.as_py().decode("utf-8") if value.is_valid else None
        except UnicodeDecodeError:
            yield _reject(position + row, "invalid_utf8", value)
            continue
        yield document(position + row, fields, **keys)


def _reject(position: int, reason: str, value: Any) -> Reject:
    buffer = value.as_buffer()
    return Reject(
        position=position, reason=reason, excerpt=excerpt(buffer.slice(0, min(1024, len(buffer))).to_pybytes())
    )


def _binary(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.large_binary())


def _values(column: pa.Array) -> list[Any]:
    """Return Python values that have a form in JSON: text that is no UTF-8 is shown as escapes."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_text(column.type):
        return [None if v is None else v.decode("utf-8", "backslashreplace") for v in _binary(column).to_pylist()]
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.string())
    try:
        return [finite(value) for value in column.to_pylist()]
    except ValueError:  # nested text that is no UTF-8, nested times that Python has no type for
        return [finite(_value(value)) for value in column]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except ValueError:
        return None
