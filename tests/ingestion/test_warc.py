"""WARC and WET, against datatrove where it decides the same, and what crawls do wrong."""

import gzip
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import zstandard
from warcio.archiveiterator import ArchiveIterator

from modalities.errors import InputError
from modalities.ingestion import warc
from modalities.ingestion.config import IngestionConfig, Source, section
from modalities.ingestion.records import Document, Meter
from modalities.ingestion.streams import Input

BODY = "<p>A sentence of some length stands here, for the extractor to find. It is followed by another one.</p>" * 3
PAGE = f"<html><head><title>t</title></head><body><article><h1>Title</h1>{BODY}</article></body></html>"


def _record(body: bytes | str, kind: str = "response", number: int = 1, **headers: str) -> bytes:
    """Return a WARC record; `_` in header names stands for `-`."""
    data = body if isinstance(body, bytes) else body.encode()
    fields = {
        "WARC-Type": kind,
        "WARC-Record-ID": f"<urn:uuid:{number}>",
        "WARC-Target-URI": f"https://example.org/{number}",
        "WARC-Date": "2024-01-01T00:00:00Z",
        "Content-Length": str(len(data)),
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
    return b"WARC/1.0\r\n" + head.encode() + b"\r\n" + data + b"\r\n\r\n"


def _http(page: bytes | str = PAGE, kind: str = "text/html; charset=utf-8", *more: str) -> bytes:
    data = page if isinstance(page, bytes) else page.encode()
    lines = ["HTTP/1.1 200 OK", *([f"Content-Type: {kind}"] if kind else []), *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def test_demo_pages_are_read_as_datatrove_reads_them(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # datatrove asks libmagic, a system library, for the type of a page; these pages are all HTML.
    magic: Any = types.ModuleType("magic")
    magic.from_buffer = lambda data, mime: "text/html"
    monkeypatch.setitem(sys.modules, "magic", magic)
    from datatrove.pipeline.readers.warc import process_record

    path = demo / "libreoffice-help-00001.warc.gz"
    with path.open("rb") as file:
        theirs = [found for record in ArchiveIterator(file) if (found := process_record(record)) is not None]
    own = section(IngestionConfig(sources={"s": Source(paths=("a.warc.gz",))}), "s")
    with Input(path) as stream:
        ours = [record for record in warc.read(stream, own, Meter()) if isinstance(record, Document)]
    assert len(ours) == len(theirs) == 768
    for mine, other in zip(ours, theirs, strict=True):
        got = {"text": mine.text, "id": mine.id, "url": mine.url, "date": mine.metadata["date"]}
        assert got == other and mine.html
    data = gzip.decompress(path.read_bytes())
    assert all(data[record.position :].startswith(b"WARC/1.0\r\n") for record in ours[:50])


@pytest.mark.parametrize("press", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_records_by_type(ingest: Any, write: Any, press: Any) -> None:
    records = [
        _record("software: x\r\n", "warcinfo", 1, Content_Type="application/warc-fields"),
        _record("GET / HTTP/1.1\r\n\r\n", "request", 2),
        _record(_http(), "response", 3),
        _record("a: b", "metadata", 4),
        _record("Extracted text\nof a page", "conversion", 5, Content_Type="text/plain"),
        _record(PAGE, "resource", 6, Content_Type="text/html"),
        _record("text that says no type", "conversion", 7),
    ]
    write("1.warc", press(b"".join(records)))
    done = ingest()
    assert [d["id"] for d in done.documents] == ["<urn:uuid:3>", "<urn:uuid:5>", "<urn:uuid:6>", "<urn:uuid:7>"]
    assert done.texts[0] == done.texts[2] and "A sentence of some length" in done.texts[0]
    assert done.texts[1] == "Extracted text\nof a page" and done.texts[3] == "text that says no type"
    assert done.documents[0]["url"] == "https://example.org/3"
    assert done.documents[0]["metadata"] == '{"date": "2024-01-01T00:00:00Z"}'
    assert done.documents[0]["position"] == len(records[0]) + len(records[1])
    assert done.results[0].counts["other_records"] == 3 and done.results[0].counts["documents_in"] == 4


def test_http_framing_is_undone(ingest: Any, write: Any) -> None:
    packed = gzip.compress(PAGE.encode())
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in (packed[:50], packed[50:])) + b"0\r\n\r\n"
    bomb = gzip.compress(b"<html>" + b"a" * 50_000_000)
    write(
        "1.warc",
        _record(_http(packed, "text/html", "Content-Encoding: gzip"), number=1)
        + _record(_http(chunks, "text/html", "Transfer-Encoding: chunked", "Content-Encoding: gzip"), number=2)
        + _record(_http(bomb, "text/html", "Content-Encoding: gzip"), number=3)
        + _record(_http(packed[:60], "text/html", "Content-Encoding: gzip"), number=4)
        + _record(_http(), number=5, WARC_Target_URI="", WARC_Record_ID=""),
    )
    done = ingest(max_document_bytes=1_000_000)
    assert done.texts[0] == done.texts[1] == done.texts[-1]
    assert done.reasons[0] == "too_large" and len(done.documents) + len(done.rejects) == 5
    assert done.documents[-1]["id"] == f"1.warc#{done.documents[-1]['position']}" and done.documents[-1]["url"] is None


@pytest.mark.parametrize(
    ("http", "reason"),
    [
        (_http(b"%PDF-1.4 ...", "application/pdf"), "not_html"),
        (_http(b"%PDF-1.4 ...", "text/html"), "not_html"),
        (_http('{"a": 1}', "application/json"), "not_html"),
        (_http("plain", "text/plain"), "not_html"),
        (_http(b"\x00\x01", ""), "not_html"),
        (_http("", "text/html"), "empty_text"),
        (_http("<html><body></body></html>"), "extraction_empty"),
        (_http(b"<html>" + bytes(range(128, 256)) * 3, "text/html; charset=no-such"), None),
    ],
)
def test_what_is_no_page_is_rejected_with_a_reason(ingest: Any, write: Any, http: bytes, reason: str | None) -> None:
    write("1.warc", _record(_http(), number=1) + _record(http, number=2) + _record(_http(), number=3))
    done = ingest()
    assert len(done.texts) == 2 and done.texts[0] == done.texts[1]
    assert len(done.reasons) == 1 and (reason is None or done.reasons == [reason])


GERMAN = PAGE.replace("Title", "Größe und Äpfel – „schön“")


@pytest.mark.parametrize(
    ("page", "kind", "charset"),
    [
        (GERMAN.encode(), "text/html; charset=iso-8859-1", None),  # UTF-8 is tried first: servers lie
        (GERMAN.encode("cp1252"), "text/html; charset=ISO-8859-1", "cp1252"),
        (GERMAN.replace("<title>", '<meta charset="windows-1252"><title>').encode("cp1252"), "text/html", "cp1252"),
        (GERMAN.encode("utf-16"), "text/html", "utf-16"),
        (PAGE.replace("Title", "Привет, мир").encode("koi8-r"), "text/html; charset=koi8-r", "koi8-r"),
        (PAGE.replace("A sentence of some", "Привет, большой русский").encode("cp1251"), "text/html", "cp1251"),
    ],
)
def test_charsets(ingest: Any, write: Any, page: bytes, kind: str, charset: str | None) -> None:
    write("1.warc", _record(_http(page, kind)))
    (document,) = ingest().documents
    assert any(word in document["text"] for word in ("Größe und Äpfel – „schön“", "Привет"))
    assert (f'"charset": "{charset}"' in document["metadata"]) == (charset is not None)


def test_a_charset_that_fits_nothing_is_a_reason(ingest: Any, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import cchardet

    monkeypatch.setattr(cchardet, "detect", lambda data: {"encoding": None})
    write("1.warc", _record(_http(b"<html>\xff\x81", "text/html; charset=hex"), number=1) + _record(_http(), number=2))
    done = ingest()
    assert done.reasons == ["bad_charset"] and len(done.texts) == 1


@pytest.mark.parametrize("press", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-200], "ends too early"),
        (lambda data: data[:-200] + b"\r\n\r\n" + data, "no WARC record begins|damage"),
        (lambda data: data.replace(b"Content-Length", b"Content-Lenght"), "no usable Content-Length"),
    ],
)
def test_damaged_framing(ingest: Any, write: Any, press: Any, damage: Any, message: str) -> None:
    write("1.warc", press(_record(_http(), number=1)) + press(damage(_record(_http(), number=2))))
    with pytest.raises(InputError, match=message):
        ingest()
    done = ingest(on_corrupt="quarantine", corrupt_limit=1.0)
    assert done.documents[0]["id"] == "<urn:uuid:1>" and done.whole.counts["corrupt_files"] == 1


def test_a_truncated_record_is_counted(ingest: Any, write: Any) -> None:
    write("1.warc", _record(_http(), number=1) + _record(_http(), number=2)[:-100])
    done = ingest(on_corrupt="quarantine")
    assert len(done.texts) == 1 and done.reasons == ["truncated"]


def test_a_large_record_is_read_past(ingest: Any, write: Any) -> None:
    large = _record(_http("<html>" + "a" * 3_000_000), number=1)
    write("1.warc", large + _record(b"x" * 3_000_000, "metadata", 2) + _record(_http(), number=3))
    done = ingest(max_document_bytes=100_000)
    assert done.reasons == ["too_large"] and [d["id"] for d in done.documents] == ["<urn:uuid:3>"]


@pytest.mark.parametrize("data", [b"<html></html>", b"\n\n{}", b"filedesc://x 0.0.0.0 1 text/plain 3\n"])
def test_what_is_no_warc_is_an_error(ingest: Any, write: Any, data: bytes) -> None:
    write("1.warc", data)
    with pytest.raises(InputError, match="expected warc, got a file that starts with"):
        ingest()


def test_an_empty_file_is_an_empty_unit(ingest: Any, write: Any) -> None:
    write("1.warc", b"")
    write("2.warc.gz", gzip.compress(b""))
    assert ingest().whole.counts["documents_in"] == 0
