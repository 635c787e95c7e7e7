"""Uncompressed bytes and lines of a file, in bounded memory whatever the file holds.

A step expands to at most `_STEP_BYTES` (gzip) or 128 MiB (zstd, where 4 KiB cannot hold more), so a decompression bomb costs
time, not memory. What a step gives before it meets damage is lost, another reason for small ones.
"""

import codecs
import dataclasses
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import zstandard

from modalities.ingestion.config import Format
from modalities.ingestion.records import CorruptError, WrongKindError

BLOCK_BYTES = 1 << 20
_STEP_BYTES = 1 << 16
_ZSTD_SLICE = 1 << 12
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_HEAD_BYTES = 512

_BINARY_KINDS = {
    b"PAR1": "a Parquet file",
    b"BZh": "a bzip2 file; recompress it with gzip or zstd",
    b"\xfd7zXZ": "an xz file; recompress it with gzip or zstd",
    b"PK\x03\x04": "a zip archive; unpack it",
    b"7z\xbc\xaf": "a 7-zip archive; unpack it",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"%PDF": "a PDF file; extract its text",
    b"\x7fELF": "a program",
    b"SQLite format 3": "an SQLite database",
    b"ARROW1": "an Arrow file; write it as Parquet",
    b"\xff\xfe": "UTF-16 text; convert it to UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it to UTF-8",
    _GZIP: "data that is compressed twice; decompress it once",
    _ZSTD: "data that is compressed twice; decompress it once",
}
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


class Input:
    """The uncompressed bytes of a plain, gzip or zstd file (told by its first bytes) from a position on.

    `read` raises `CorruptError` where damage is noticed, after everything before was returned. Checksums stand at the end of a
    gzip member or zstd frame, so that what was returned since the last end may be garbled; the message says where that was.
    """

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self._file = path.open("rb")
        self.file_bytes = path.stat().st_size
        self.position = start
        """Bytes of the uncompressed file that were returned or skipped."""
        head = self._file.read(4)
        self.compression = "gzip" if head.startswith(_GZIP) else "zstd" if head.startswith(_ZSTD) else None
        self._file.seek(start if self.compression is None else 0)
        readers = {"gzip": self._gzip, "zstd": self._zstd, None: self._plain}
        self._blocks = readers[self.compression]()
        self._rest = memoryview(b"")
        self._verified = start

    @property
    def file_position(self) -> int:
        """Bytes of the file on disk that were read."""
        return self._file.tell()

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        """Return at least one and at most `size` bytes; none at the end."""
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return b""
            self._rest = memoryview(block)
        data, self._rest = bytes(self._rest[:size]), self._rest[size:]
        self.position += len(data)
        return data

    def _plain(self) -> Iterator[bytes]:
        while block := self._file.read(BLOCK_BYTES):
            yield block

    def _gzip(self) -> Iterator[bytes]:
        """Yield what all gzip members hold; zeros after a member are padding."""
        data = b""
        member: Any = None
        while True:
            data = data or self._file.read(_STEP_BYTES)
            if not data:
                break
            if member is None:
                data = data.lstrip(b"\0")
                member = zlib.decompressobj(31) if data else None
                continue
            try:
                block = member.decompress(data, _STEP_BYTES)
            except zlib.error as error:
                raise self._corrupt(f"gzip data is damaged ({error})") from None
            if block:
                yield block
            data = member.unused_data if member.eof else member.unconsumed_tail
            if member.eof:
                member, self._verified = None, self.position
        if member is not None:
            raise self._corrupt("gzip data ends too early")

    def _zstd(self) -> Iterator[bytes]:
        """Yield what all zstd frames hold."""
        data = b""
        frame: Any = None
        while True:
            data = data or self._file.read(BLOCK_BYTES)
            if not data:
                break
            if frame is None:
                frame = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
            part, data = data[:_ZSTD_SLICE], data[_ZSTD_SLICE:]
            try:
                block = frame.decompress(part)
            except zstandard.ZstdError as error:
                raise self._corrupt(f"zstd data is damaged ({error})") from None
            if block:
                yield block
            if frame.eof:
                data, frame, self._verified = frame.unused_data + data, None, self.position
        if frame is not None:
            raise self._corrupt("zstd data ends too early")

    def _corrupt(self, message: str) -> CorruptError:
        place = (
            f"{message} at byte {self._file.tell()} of {self.file_bytes}, byte {self.position} uncompressed; "
            f"checksums hold up to byte {self._verified} uncompressed"
        )
        return CorruptError(place, position=self.position, lost_share=1 - self._file.tell() / max(1, self.file_bytes))

    def __enter__(self) -> "Input":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def check_kind(path: Path, expected: Format) -> None:
    """Raise `WrongKindError` if a file, decompressed, begins like another kind. Damage is not looked for."""
    with Input(path) as stream:
        try:
            head = stream.read(_HEAD_BYTES)
        except CorruptError:
            return
    if head and expected == "parquet":
        if not head.startswith(b"PAR1"):
            raise WrongKindError(f"a file that starts with {head[:16]!r}")
        return
    if head and expected == "warc":
        if not head.lstrip().startswith(b"WARC/"):
            raise WrongKindError(f"a file that starts with {head[:16]!r}")
        return
    if head.startswith(b"WARC/1."):
        raise WrongKindError("a WARC file")
    if head[257:262] == b"ustar":
        raise WrongKindError("a tar archive; unpack it")
    if _is_binary(head):
        for magic, kind in _BINARY_KINDS.items():
            if head.startswith(magic):
                raise WrongKindError(kind)


def _is_binary(head: bytes) -> bool:
    """Tell whether a head can not be text: a text may begin with the letters of a magic number."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return True
    return _CONTROL.search(head) is not None


@dataclasses.dataclass(slots=True)
class Line:
    """A line without its newline. `data` is cut where the line is longer than allowed (`too_long`) or ends in damage."""

    position: int
    data: bytes
    too_long: bool = False
    truncated: bool = False


def lines(stream: Input, *, end: int | None, max_bytes: int, skip_first: bool) -> Iterator[Line]:
    """Yield the lines that start before `end`, or all. Lines over `max_bytes` are read past, not held.

    With `skip_first` everything up to the first newline belongs to somebody else and is left out.
    """
    held = _Held(stream.position, max_bytes)
    skipping = skip_first
    while end is None or held.position < end:
        try:
            block = stream.read()
        except CorruptError:
            if held.size and not skipping:
                yield held.line(truncated=True)
            raise
        if not block:
            if held.size and not skipping:
                yield held.line()
            return
        first = block.find(b"\n")
        if first < 0:
            held.add(block)
            continue
        held.add(block[:first])
        position = held.position + held.size + 1
        if not skipping:
            yield held.line()
        skipping = False
        pieces = block[first + 1 :].split(b"\n")
        last = pieces.pop()
        for piece in pieces:
            if end is not None and position >= end:
                return
            yield Line(position, piece) if len(piece) <= max_bytes else Line(position, piece[:1024], too_long=True)
            position += len(piece) + 1
        held = _Held(position, max_bytes)
        held.add(last)


class _Held:
    """A line that goes on in the next block."""

    def __init__(self, position: int, max_bytes: int) -> None:
        self.position = position
        self.size = 0
        self._max_bytes = max_bytes
        self._pieces: list[Any] = []

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size <= self._max_bytes:
            self._pieces.append(piece)
        else:
            self._pieces = [b"".join(self._pieces)[:1024] or piece[:1024]]

    def line(self, *, truncated: bool = False) -> Line:
        return Line(self.position, b"".join(self._pieces), self.size > self._max_bytes, truncated)
