"""WARC and WET: web pages and extracted texts out of crawl archives.

Framing is read here and not by warcio, which takes a record that ends too early for a whole one and a bad length for zero.
warcio undoes HTTP's chunking and compression. Which records are documents follows datatrove's WarcReader, with a sniffer of
our own in place of libmagic: `response` (and `resource`) records that are HTML, and `conversion` records that are HTML or text.
"""

import dataclasses
import io
import re
from collections.abc import Iterator
from typing import Any

from warcio.bufferedreaders import BufferedReader, ChunkedDataReader
from warcio.exceptions import ArchiveLoadFailed

from modalities.ingestion.charsets import decode
from modalities.ingestion.config import IngestionSection
from modalities.ingestion.records import CorruptError, Document, Meter, Reject, excerpt
from modalities.ingestion.streams import BLOCK_BYTES, Input

_TYPES = {"response", "resource", "conversion"}
_HTML = {"text/html", "application/xhtml+xml"}
_HEADER_BYTES = 1 << 16
"""HTTP headers may add this much to a record that is as long as a document may be; also the bound of a WARC header."""
_BINARY = (b"%PDF", b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"PK\x03\x04", b"\x1f\x8b")
_HTML_HEAD = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--.{0,2000}?-->\s*)*"
    rb"<(?:!doctype\s+html|html|head|body|title|meta|script|style|table|div|p|h[1-6]|a|font|br|link|base|iframe)\b",
    re.IGNORECASE | re.DOTALL,
)


@dataclasses.dataclass(kw_only=True, slots=True)
class _Header:
    position: int
    length: int
    fields: dict[str, str]

    @property
    def type(self) -> str:
        return self.fields.get("warc-type", "").lower()


def read(stream: Input, section: IngestionSection, meter: Meter) -> Iterator[Document | Reject]:
    """Yield a document or a reject for every record that could hold one; count the others."""
    reader = _Reader(stream)
    while (header := _header(reader)) is not None:
        meter.done_bytes = stream.file_position
        wanted = header.type in _TYPES
        if wanted and header.length <= section.max_document_bytes + _HEADER_BYTES:
            block = reader.take(header.length)
            if len(block) < header.length:
                yield _reject(header, "truncated", block[:1024])
                raise _ends_early(reader)
            yield _record(header, block, section.max_document_bytes)
            continue
        if wanted:
            yield _reject(header, "too_large", header.fields.get("warc-target-uri", "").encode())
        else:
            meter.other_records += 1
        if reader.skip(header.length) < header.length:
            raise _ends_early(reader)


def _header(reader: "_Reader") -> _Header | None:
    """Read the header of the next record, or None at the end. Raises `CorruptError` where none begins."""
    line = reader.line()
    while line in (b"\r\n", b"\n"):
        line = reader.line()
    position = reader.position - len(line)
    if not line:
        return None
    if not line.startswith(b"WARC/"):
        raise CorruptError(
            f"no WARC record begins at byte {position} uncompressed, but {line[:40]!r}",
            position=position,
            lost_share=reader.left(),
        )
    fields: dict[str, str] = {}
    name = ""
    while (line := reader.line()).strip():
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text[0] in " \t" and name:
            fields[name] += " " + text.strip()
            continue
        name, _, value = text.partition(":")
        name = name.strip().lower()
        fields.setdefault(name, value.strip())
        if reader.position - position > _HEADER_BYTES:
            break
    length = fields.get("content-length", "")
    if not line or not (length.isascii() and length.isdigit()):
        what = f"has no usable Content-Length, but {length!r}" if line else "ends within its header"
        raise CorruptError(
            f"the record at byte {position} uncompressed {what}", position=position, lost_share=reader.left()
        )
    return _Header(position=position, length=int(length), fields=fields)


def _ends_early(reader: "_Reader") -> CorruptError:
    return CorruptError(
        f"the last record ends too early, at byte {reader.position}", position=reader.position, lost_share=0.0
    )


def _record(header: _Header, block: bytes, max_bytes: int) -> Document | Reject:
    http = header.type == "response" and block.startswith(b"HTTP/")
    declared = "" if http else header.fields.get("content-type", "")
    payload = block
    if http:
        try:
            payload, declared = _payload(block, max_bytes)
        except (ArchiveLoadFailed, OSError, EOFError, ValueError) as error:
            return _reject(header, "bad_http", str(error).encode())
    if len(payload) > max_bytes:
        return _reject(header, "too_large", payload[:1024])
    conversion = header.type == "conversion"
    stated = declared if conversion else header.fields.get("warc-identified-payload-type", "")
    kind = stated.partition(";")[0].strip().lower() or _sniff(payload, declared)
    plain = conversion and kind == "text/plain"
    if kind not in _HTML and not plain:
        return _reject(header, "not_html", f"{kind}: {header.fields.get('warc-target-uri', '')}".encode())
    decoded = decode(payload, declared)
    if decoded is None:
        return _reject(header, "bad_charset", payload[:1024])
    text, charset = decoded
    fields = header.fields
    metadata: dict[str, Any] = {"date": fields["warc-date"]} if "warc-date" in fields else {}
    metadata |= {} if charset == "utf-8" else {"charset": charset}
    return Document(
        position=header.position,
        text=text,
        id=fields.get("warc-record-id") or None,
        url=_address(fields.get("warc-target-uri")),
        metadata=metadata,
        html=not plain,
    )


def _payload(block: bytes, max_bytes: int) -> tuple[bytes, str]:
    """Return the body of an HTTP response, without chunking and compression, and its Content-Type."""
    head, _, body = block.partition(b"\r\n\r\n")
    if b"\r\n\r\n" not in block:
        head, _, body = block.partition(b"\n\n")
    fields: dict[str, str] = {}
    for line in head.split(b"\n")[1:]:
        name, _, value = line.decode("latin-1").partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    encoding: str | None = fields.get("content-encoding", "").lower()
    if encoding not in BufferedReader.get_supported_decompressors():
        encoding = None
    if fields.get("transfer-encoding", "").lower() == "chunked":
        body = _read(ChunkedDataReader(io.BytesIO(body), decomp_type=encoding), max_bytes)
    elif encoding is not None:
        body = _read(BufferedReader(io.BytesIO(body), decomp_type=encoding), max_bytes)
    return body, fields.get("content-type", "")


def _read(reader: Any, max_bytes: int) -> bytes:
    """Read at most one byte more than allowed, so that a bomb does not unfold."""
    data = bytearray()
    while len(data) <= max_bytes and (part := reader.read(min(BLOCK_BYTES, max_bytes + 1 - len(data)))):
        data += part
    return bytes(data)


def _sniff(payload: bytes, declared: str) -> str:
    """Return the media type: HTML by its first tag, else what was declared, else text or unknown."""
    head = payload[:4096]
    media = declared.partition(";")[0].strip().lower()
    if head.startswith(_BINARY):
        return "application/octet-stream"
    if _HTML_HEAD.match(head):
        return "text/html"
    if media:
        return media
    return "text/plain" if b"\0" not in head else "application/octet-stream"


def _address(url: str | None) -> str | None:
    """Return the record's address. Wget 1.19 wrote it in angle brackets."""
    if url is not None and url.startswith("<") and url.endswith(">"):
        url = url[1:-1]
    return url or None


def _reject(header: _Header, reason: str, data: bytes) -> Reject:
    return Reject(position=header.position, reason=reason, excerpt=excerpt(data))


class _Reader:
    """Lines and counted bytes of a stream."""

    def __init__(self, stream: Input) -> None:
        self._stream = stream
        self._held = b""
        self._next = 0
        self.position = stream.position

    def line(self) -> bytes:
        """Return a line with its newline; without one at the end of the stream or where it is longer than any header."""
        while (found := self._held.find(b"\n", self._next)) < 0:
            if len(self._held) - self._next > _HEADER_BYTES or not self._fill():
                return self._pop(len(self._held) - self._next)
        return self._pop(found + 1 - self._next)

    def take(self, size: int) -> bytes:
        """Return `size` bytes, or fewer at the end of the stream."""
        pieces, missing = [], size
        while missing:
            if self._next == len(self._held) and not self._fill():
                break
            pieces.append(self._pop(min(missing, len(self._held) - self._next)))
            missing -= len(pieces[-1])
        return b"".join(pieces)

    def skip(self, size: int) -> int:
        """Read past `size` bytes and return how many there were."""
        missing = size
        while missing and (part := self.take(min(missing, BLOCK_BYTES))):
            missing -= len(part)
        return size - missing

    def left(self) -> float:
        """Return the share of the file that was not read."""
        return 1 - self._stream.file_position / max(1, self._stream.file_bytes)

    def _pop(self, size: int) -> bytes:
        data = self._held[self._next : self._next + size]
        self._next += len(data)
        self.position += len(data)
        return data

    def _fill(self) -> bool:
        block = self._stream.read()
        self._held = self._held[self._next :] + block
        self._next = 0
        return bool(block)
