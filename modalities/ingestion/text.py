"""Plain UTF-8 text: a document is a file, a paragraph or a line. `\r\n` becomes `\n`; a byte order mark is left out."""

from collections.abc import Iterator

from modalities.ingestion.config import IngestionSection
from modalities.ingestion.records import CorruptError, Document, Meter, Reject, excerpt
from modalities.ingestion.streams import Input, Line, lines

_BOM = b"\xef\xbb\xbf"


def read(
    stream: Input, section: IngestionSection, meter: Meter, *, end: int | None, skip_first: bool
) -> Iterator[Document | Reject]:
    """Yield the documents of a file or of a range of it.

    A line belongs to the range in which it starts, a paragraph to the range in which the last blank line before it starts.
    """
    if section.documents == "lines":
        return _lines(stream, section, meter, end, skip_first)
    if section.documents == "paragraphs":
        return _paragraphs(stream, section, meter, end, skip_first)
    return _file(stream, section, meter)


def _file(stream: Input, section: IngestionSection, meter: Meter) -> Iterator[Document | Reject]:
    kept = bytearray()
    try:
        while block := stream.read():
            meter.done_bytes = stream.file_position
            kept += block[: section.max_document_bytes + 1 - len(kept)]
            if len(kept) > section.max_document_bytes and stream.compression is None:
                break  # nothing behind this is read, and a plain file has no checksum to verify
    except CorruptError:
        yield Reject(position=0, reason="truncated", excerpt=excerpt(bytes(kept[:1024])))
        raise
    if len(kept) > section.max_document_bytes:
        yield Reject(position=0, reason="too_large", excerpt=excerpt(bytes(kept[:1024])))
    else:
        yield _document(0, bytes(kept))


def _lines(
    stream: Input, section: IngestionSection, meter: Meter, end: int | None, skip_first: bool
) -> Iterator[Document | Reject]:
    for line in lines(stream, end=end, max_bytes=section.max_document_bytes, skip_first=skip_first):
        meter.done_bytes = stream.file_position
        if line.too_long or line.truncated:
            reason = "truncated" if line.truncated else "too_large"
            yield Reject(position=line.position, reason=reason, excerpt=excerpt(line.data))
        elif _is_blank(line.data):
            meter.blank_lines += 1
        else:
            yield _document(line.position, line.data)


def _paragraphs(
    stream: Input, section: IngestionSection, meter: Meter, end: int | None, skip_first: bool
) -> Iterator[Document | Reject]:
    """Join lines up to a blank one. With `skip_first` everything up to the first blank line belongs to the range before."""
    paragraph: _Paragraph | None = None
    skipping = skip_first
    try:
        for line in lines(stream, end=None, max_bytes=section.max_document_bytes, skip_first=skip_first):
            meter.done_bytes = stream.file_position
            if line.truncated or not _is_blank(line.data):
                if not skipping:
                    paragraph = paragraph or _Paragraph(line.position, section.max_document_bytes)
                    paragraph.add(line)
                continue
            if paragraph is not None:
                yield paragraph.end()
            paragraph, skipping = None, False
            if end is not None and line.position >= end:
                return
            meter.blank_lines += 1
    except CorruptError:
        if paragraph is not None:
            yield paragraph.end(truncated=True)
        raise
    if paragraph is not None:
        yield paragraph.end()


class _Paragraph:
    """Lines that are joined; of one that is too long only the beginning is held."""

    def __init__(self, position: int, max_bytes: int) -> None:
        self._position = position
        self._room = max_bytes + 1
        self._lines: list[bytes] = []
        self._reason: str | None = None

    def add(self, line: Line) -> None:
        self._room -= len(line.data) + 1
        self._lines.append(line.data)
        if line.too_long or self._room < 0:
            self._reason = "too_large"
            self._lines = [self._lines[0][:1024]]

    def end(self, *, truncated: bool = False) -> Document | Reject:
        reason = "truncated" if truncated else self._reason
        if reason is not None:
            return Reject(position=self._position, reason=reason, excerpt=excerpt(self._lines[0]))
        return _document(self._position, b"\n".join(self._lines))


def _document(position: int, data: bytes) -> Document | Reject:
    try:
        text = data.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError:
        return Reject(position=position, reason="invalid_utf8", excerpt=excerpt(data))
    text = text.replace("\r\n", "\n")
    return Document(position=position, text=text.removesuffix("\r"))


def _is_blank(data: bytes) -> bool:
    return not data.removeprefix(_BOM).strip()
