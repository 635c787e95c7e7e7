"""JSONL: one JSON object a line. A line that is none is rejected by itself and does not disturb those after it."""

from collections.abc import Iterator

import orjson

from modalities.ingestion.config import IngestionSection
from modalities.ingestion.fields import document
from modalities.ingestion.records import Document, Meter, Reject, excerpt
from modalities.ingestion.streams import Input, Line, lines

_BOM = b"\xef\xbb\xbf"


def read(
    stream: Input, section: IngestionSection, meter: Meter, *, end: int | None, skip_first: bool
) -> Iterator[Document | Reject]:
    """Yield what the lines that start before `end` hold. Blank lines are counted and are no records."""
    assert section.text_key is not None and section.id_key is not None and section.url_key is not None
    keys = {"text_key": section.text_key, "id_key": section.id_key, "url_key": section.url_key}
    for line in lines(stream, end=end, max_bytes=section.max_document_bytes, skip_first=skip_first):
        meter.done_bytes = stream.file_position
        if line.too_long or line.truncated:
            reason = "truncated" if line.truncated else "too_large"
            yield Reject(position=line.position, reason=reason, excerpt=excerpt(line.data))
        elif not line.data.removeprefix(_BOM).strip():
            meter.blank_lines += 1
        else:
            yield _record(line, keys)


def _record(line: Line, keys: dict[str, str]) -> Document | Reject:
    data = line.data.removeprefix(_BOM)
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return Reject(position=line.position, reason=_reason(data, error), excerpt=excerpt(line.data))
    if not isinstance(fields, dict):
        return Reject(position=line.position, reason="wrong_type", excerpt=excerpt(line.data))
    return document(line.position, fields, **keys)


def _reason(data: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "invalid_utf8"
    return "lone_surrogate" if "surrogate" in str(error) else "invalid_json"
