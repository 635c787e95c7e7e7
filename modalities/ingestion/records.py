"""What readers yield: documents, HTML pages and rejects; and how they say that a file is damaged."""

import dataclasses
from typing import Any

EXCERPT_CHARACTERS = 200

BROKEN = frozenset(
    {"missing_text", "wrong_type", "invalid_utf8", "invalid_json", "lone_surrogate", "truncated", "corrupt"}
)
"""Reasons that speak of a broken file rather than of an unwanted document; they count against `corrupt_limit`."""


@dataclasses.dataclass(kw_only=True, slots=True)
class Document:
    """A record with text. `html` says that `text` is a page whose text is still to be extracted."""

    position: int
    text: str
    id: str | None = None
    url: str | None = None
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    html: bool = False


@dataclasses.dataclass(kw_only=True, slots=True)
class Reject:
    """A record that is no document, and why. `records` is more than one where a stretch of rows is lost."""

    position: int
    reason: str
    excerpt: str = ""
    records: int = 1


@dataclasses.dataclass(kw_only=True, slots=True)
class Meter:
    """What a reader counts besides records."""

    done_bytes: int = 0
    """Bytes of the file on disk that were read."""
    blank_lines: int = 0
    other_records: int = 0
    """WARC records that are no documents by their type, such as requests."""


class CorruptError(Exception):
    """The rest of a file cannot be read. Everything before it has been yielded."""

    def __init__(self, message: str, *, position: int, lost_share: float) -> None:
        super().__init__(message)
        self.position = position
        """Where the damage is seen, in bytes of the uncompressed file, or in rows."""
        self.lost_share = lost_share
        """Share of the file's bytes that is lost with it."""


class WrongKindError(Exception):
    """The file is not of the format that the source says; the message tells what it looks like."""


def excerpt(data: str | bytes) -> str:
    """Return the beginning of a record as text that can be stored and shown."""
    if isinstance(data, bytes):
        return data[: 4 * EXCERPT_CHARACTERS].decode("utf-8", "backslashreplace")[:EXCERPT_CHARACTERS]
    return data[:EXCERPT_CHARACTERS].encode("utf-8", "backslashreplace").decode("utf-8")
