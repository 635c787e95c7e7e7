"""From the fields of a JSONL record or a Parquet row to a document."""

import math
from typing import Any

from modalities.ingestion.records import Document, Reject, excerpt


def document(position: int, fields: dict[str, Any], *, text_key: str, id_key: str, url_key: str) -> Document | Reject:
    """Return the document that a record holds; `fields` loses text, id and address, the rest becomes metadata.

    An id is text or a whole number, an address text; other values under these keys stay in the metadata.
    """
    missing = text_key not in fields
    text = fields.pop(text_key, None)
    if text is None:
        what = f"no key {text_key!r}; keys: {', '.join(map(str, fields))}" if missing else f"{text_key!r} is null"
        return Reject(position=position, reason="missing_text", excerpt=excerpt(what))
    if not isinstance(text, str):
        return Reject(position=position, reason="wrong_type", excerpt=excerpt(f"{type(text).__name__}: {text}"))
    name, url = fields.get(id_key), fields.get(url_key)
    if isinstance(name, str | int) and not isinstance(name, bool) and name != "":
        del fields[id_key]
        name = str(name)
    else:
        name = None
    if isinstance(url, str):
        del fields[url_key]
    else:
        url = None
    return Document(position=position, text=text, id=name, url=url, metadata=fields)


def finite(value: Any) -> Any:
    """Return JSON data with None in place of numbers that JSON has no form for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value
