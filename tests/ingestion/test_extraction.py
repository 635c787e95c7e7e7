"""Extraction: datatrove's texts, no influence of other pages, and pages that hang, fail or eat memory."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from modalities.errors import InterruptedRunError, OutOfMemoryError
from modalities.ingestion import warc
from modalities.ingestion.config import Extraction, IngestionConfig, Source, section
from modalities.ingestion.extraction import Extractor
from modalities.ingestion.records import Document, Meter
from modalities.ingestion.streams import Input

SENTENCE = "A sentence of some length stands here, for the extractor to find."
PAGE = "<html><body><article>" + f"<p>{SENTENCE}</p>" * 3 + "</article></body></html>"


@pytest.fixture(scope="module")
def pages() -> list[str]:
    """Return a subset of the demo's pages, English and German."""
    own = section(IngestionConfig(sources={"s": Source(paths=("a.warc.gz",))}), "s")
    path = Path(__file__).parents[2] / "data" / "demo" / "libreoffice-help-00002.warc.gz"
    with Input(path) as stream:
        found = [record.text for record in warc.read(stream, own, Meter()) if isinstance(record, Document)]
    return found[::24]


def test_texts_equal_datatroves_and_do_not_depend_on_other_pages(pages: list[str]) -> None:
    from datatrove.pipeline.extractors import Trafilatura
    from trafilatura.deduplication import LRU_TEST

    theirs = []
    for page in pages:
        LRU_TEST.clear()  # datatrove's texts depend on the pages before; ours are those of a page alone
        theirs.append(Trafilatura().extract(page))
    with Extractor(Extraction()) as extractor:
        ours = [extractor.extract(page) for page in pages]
        again = [extractor.extract(page) for page in reversed(pages)]
    assert [text if outcome == "text" else None for outcome, text in ours] == theirs
    assert again == ours[::-1] and sum(text is not None for text in theirs) > 25


def test_settings_reach_the_extractor() -> None:
    row = f"<tr><td>{SENTENCE} In a table.</td><td>{SENTENCE}</td></tr>"
    page = PAGE.replace("</article>", f"<table>{row}</table></article>")
    with Extractor(Extraction(include_tables=False)) as without, Extractor(Extraction()) as with_tables:
        assert "In a table" in with_tables.extract(page)[1] and "In a table" not in without.extract(page)[1]
    many = (
        "<html><body><article>" + f"<p>{SENTENCE * 3}</p><p>{os.urandom(99).hex()}</p>" * 6 + "</article></body></html>"
    )
    with Extractor(Extraction(deduplicate=False)) as keeps, Extractor(Extraction()) as drops:
        assert keeps.extract(many)[1].count(SENTENCE) > drops.extract(many)[1].count(SENTENCE)


def _replace_extract(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Make the child's `trafilatura.extract` do something bad for pages that say so."""
    code = f"""
import trafilatura
real = trafilatura.extract
def bad(page, **keys):
{body}
    return real(page, **keys)
trafilatura.extract = bad
"""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_a_page_that_hangs_ends_by_cpu_time_and_the_next_one_is_extracted(tmp_path: Path, monkeypatch: Any) -> None:
    body = "    while 'hang' in page: pass\n    if 'regex' in page: __import__('re').match('(a+)+b', 'a' * 60)"
    _replace_extract(tmp_path / "site", monkeypatch, body)
    with Extractor(Extraction(cpu_seconds=0.3)) as extractor:
        for bad in ("hang", "regex"):  # in Python, and in C, where no handler of Python's would run
            assert extractor.extract(PAGE)[0] == "text"
            outcome, why = extractor.extract(PAGE.replace("sentence", bad))
            assert outcome == "extraction_timeout" and "0.3 s of CPU time" in why
        assert extractor.extract(PAGE)[0] == "text" and extractor.restarts == 2


def test_waiting_costs_no_cpu_time(tmp_path: Path, monkeypatch: Any) -> None:
    _replace_extract(tmp_path / "site", monkeypatch, "    __import__('time').sleep(0.6 if 'wait' in page else 0)")
    with Extractor(Extraction(cpu_seconds=0.4)) as extractor:
        assert extractor.extract(PAGE)[0] == "text"
        started = time.monotonic()
        assert extractor.extract(PAGE.replace("sentence", "wait"))[0] == "text", "a busy machine must not drop pages"
        assert time.monotonic() - started > 0.6


@pytest.mark.parametrize(
    ("body", "outcome", "why"),
    [
        ("    if 'bad' in page: raise RecursionError('deep')", "extraction_failed", "RecursionError: deep"),
        ("    if 'bad' in page: __import__('os').abort()", "extraction_failed", "the extractor died (SIGABRT)"),
        ("    if 'bad' in page: __import__('os')._exit(3)", "extraction_failed", "the extractor died (exit status 3)"),
        ("    if 'bad' in page: bytearray(4_000_000_000)", "extraction_memory", "more than"),
        ("    if 'bad' in page: return 'a\\ud800'", "lone_surrogate", "surrogates"),
        ("    if 'bad' in page: return ' \\n'", "extraction_empty", ""),
        ("    print('noise')", "text", "sentence"),
    ],
)
def test_failures_are_reasons(tmp_path: Path, monkeypatch: Any, body: str, outcome: str, why: str) -> None:
    _replace_extract(tmp_path / "site", monkeypatch, body)
    with Extractor(Extraction()) as extractor:
        page = PAGE if outcome == "text" else PAGE.replace("sentence", "bad")
        got, text = extractor.extract(page)
        assert got == outcome and why in text
        assert extractor.extract(PAGE)[0] == "text"


@pytest.mark.parametrize(("number", "error"), [(9, OutOfMemoryError), (15, InterruptedRunError)])
def test_a_kill_from_outside_is_no_reason_to_drop_a_page(
    tmp_path: Path, monkeypatch: Any, number: int, error: Any
) -> None:
    _replace_extract(
        tmp_path / "site",
        monkeypatch,
        f"    __import__('os').kill(__import__('os').getpid(), {number} * ('bad' in page))",
    )
    with pytest.raises(error), Extractor(Extraction()) as extractor:
        extractor.extract(PAGE.replace("sentence", "bad"))


def test_strange_pages_have_an_outcome() -> None:
    strange = [
        "",
        "<",
        "\x00",
        "<html>" * 5000,
        "&#xD800;" * 50,
        "<p>" + "ü" * 100_000,
        PAGE + "\ufffe\x0b",
        "<![CDATA[" * 99,
    ]
    with Extractor(Extraction()) as extractor:
        outcomes = [extractor.extract(page)[0] for page in strange]
        assert extractor.extract(PAGE)[0] == "text" and extractor.restarts == 0
    assert set(outcomes) <= {"text", "extraction_empty", "extraction_failed"}


def test_the_child_ends_with_its_extractor() -> None:
    with Extractor(Extraction()) as extractor:
        extractor.extract(PAGE)
        child = extractor._child
    assert child is not None and child.poll() == 0
    with pytest.raises(ZeroDivisionError), Extractor(Extraction()) as extractor:
        extractor.extract(PAGE)
        child = extractor._child
        raise ZeroDivisionError
    assert child.poll() is not None
