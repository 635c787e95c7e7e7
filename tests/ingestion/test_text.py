"""Plain text as files, paragraphs and lines."""

import gzip
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modalities.errors import InputError
from modalities.ingestion import text
from modalities.ingestion.config import IngestionConfig, Source, section
from modalities.ingestion.records import Document, Meter
from modalities.ingestion.streams import Input

POEM = b"\xef\xbb\xbfone\r\ntwo\r\n\r\n \t\r\nthree\n\nfour"


def test_a_file_is_a_document(ingest: Any, write: Any) -> None:
    write("1.txt", POEM)
    write("2.md", b"ab\xff")
    write("3.txt", b"")
    done = ingest()
    assert done.texts == ["one\ntwo\n\n \t\nthree\n\nfour"] and done.documents[0]["id"] == "1.txt#0"
    assert done.reasons == ["invalid_utf8", "empty_text"] or pytest.fail(str(done.reasons))


def test_paragraphs_and_lines(ingest: Any, write: Any) -> None:
    write("1.txt", POEM)
    done = ingest(documents="paragraphs")
    assert done.texts == ["one\ntwo", "three", "four"] and [d["position"] for d in done.documents] == [0, 19, 26]
    assert done.results[0].counts["blank_lines"] == 3
    assert ingest(documents="lines").texts == ["one", "two", "three", "four"]


def test_one_bad_line_is_rejected_alone(ingest: Any, write: Any) -> None:
    write("1.txt", b"a\n\nb\xff\n\nc")
    for documents in ("lines", "paragraphs"):
        done = ingest(documents=documents)
        assert done.texts == ["a", "c"] and done.reasons == ["invalid_utf8"]


@pytest.mark.parametrize("documents", ["file", "lines", "paragraphs"])
def test_long_documents_are_read_past(ingest: Any, write: Any, documents: str) -> None:
    write("1.txt", b"a" * 1001 + b"\n\nb")
    write("2.txt", b"a" * 1000)
    write("3.txt", (b"a" * 99 + b"\n") * 11)
    done = ingest(documents=documents, max_document_bytes=1000)
    assert (
        done.reasons == {"file": ["too_large"] * 2, "lines": ["too_large"], "paragraphs": ["too_large"] * 2}[documents]
    )
    assert done.texts[0] == ("a" * 1000 if documents == "file" else "b")


@pytest.mark.parametrize("documents", ["file", "lines", "paragraphs"])
def test_what_ends_in_damage_is_no_document(ingest: Any, write: Any, documents: str) -> None:
    data = gzip.compress(b"".join(b"line %d %d\n%s" % (i, i * i, b"" if i % 5 else b"\n") for i in range(50_000)))
    write("1.txt.gz", data[:-1000])
    with pytest.raises(InputError, match="gzip data ends too early"):
        ingest(documents=documents)
    done = ingest(documents=documents, on_corrupt="quarantine", corrupt_limit=1.0)
    assert done.reasons == ["truncated"] and (documents == "file" or len(done.texts) > 5000)


@pytest.mark.parametrize("documents", ["lines", "paragraphs"])
@settings(max_examples=60, deadline=None)
@given(
    data=st.lists(st.sampled_from([b"a", b"bb\xc3\xbc", b"\n", b"\n\n", b" ", b"\r\n", b"\n\t\n"]), max_size=40).map(
        b"".join
    )
)
def test_documents_do_not_depend_on_how_a_file_is_cut(tmp_path_factory: Any, documents: Any, data: bytes) -> None:
    path = Path(tmp_path_factory.getbasetemp()) / "cut.txt"
    path.write_bytes(data)
    own = section(IngestionConfig(sources={"s": Source(paths=("a.txt",), documents=documents)}), "s")
    outcomes = []
    for number in (1, 2, 7):
        bounds = [len(data) * i // number for i in range(number + 1)]
        found, meter = [], Meter()
        for start, end in sorted(set(itertools.pairwise(bounds)) - {(0, 0)} or {(0, 0)}):
            with Input(path, start=max(0, start - 1)) as stream:
                found += list(text.read(stream, own, meter, end=end, skip_first=start > 0))
        outcomes.append((found, meter.blank_lines))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    joined = "\n".join(d.text for d in outcomes[0][0] if isinstance(d, Document))
    assert "".join(joined.split()) == "".join(data.decode().split()), "no character is lost"
