"""Units of documents by hand, and real documents of the shipped corpus."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from modalities import config as strict
from modalities.documents import DOCUMENTS, GroupWriter
from modalities.filtering import compiled
from modalities.filtering.config import FilteringConfig
from modalities.manifest import Manifest
from modalities.work import Result, Upstream, Work

DEMO = Path(__file__).parents[2] / "data" / "demo"


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> None:
    """Compile once per checkout: machine code is kept beside the source."""
    compiled.load("kernels")
    compiled.load("language_kernels")


def _pages(path: Path, step: int) -> Iterator[str]:
    import lxml.html
    from warcio.archiveiterator import ArchiveIterator

    with path.open("rb") as file:
        for index, record in enumerate(ArchiveIterator(file)):
            if record.rec_type == "response" and index % step == 0:
                main = lxml.html.fromstring(record.content_stream().read()).xpath("//div[@id='DisplayArea']")
                text = "\n".join(part.text_content() for part in main)
                yield "\n".join(line for line in text.splitlines() if len(line) > 40 or index % 5 == 0)


@pytest.fixture(scope="session")
def pages() -> list[str]:
    """Help pages, English and German, every fifth with its headings and empty lines: about half fail some rule."""
    return [page for path in sorted(DEMO.glob("*.warc.gz")) for page in _pages(path, 28)]


@pytest.fixture(scope="session")
def novels() -> list[str]:
    """Passages of novels: most pass."""
    with gzip.open(DEMO / "austen.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file][::25]


NASTY = [
    "",
    "  ",
    "\n",
    "\t\n ",
    "\x1c\x1d\x1e\x1f",
    "a\r\nb\x0bc\x85d\u2028e\u3000f",
    "IS_ALPHA foo IS_ALPHAbar",
    "\u6c49\u5b57 ok next x",
    "[1] [2] [3]",
    "[1]\n[2]\n",
    "Foo bar baz.  [1]\nMore.  ) text [12] here [edit] and there. Again. Again! So? Yes.   [3]\nOne two three.",
    "Javascript is needed { here\nlorem Ipsum is here {",
    "{ comes first here\nlorem ipsum is here",
    "lorem ipsum and { here",
    "use coo\u212aies on this site now\nfine line here ok. One. Two. Three! Four? Five.",
    "java\u0130script is n\u0131ce here\nand so on and so on",
    "word " * 60,
    "the be to of and " * 30,
    "...\n" * 40,
    "- bullet line here\n" * 30,
    "\u2022 point of the list\n" * 30,
    "# # # #" * 20,
    "-- !! ??" * 40,
    "a" * 1200 + " b c d",
    "Hello world this is. " * 30 + "\n\n\nx\n\n\nx\n\nx",
    "\nabc\n\nabc\n",
    "ends... \nfoo\u2026\nbar...",
    "\u00c4" * 40 + " \u00df" * 70,
    "ab cd " * 3 + "abc d " * 3 + "a bcd " * 50,
    "He said (Mr. Bean) to go:) --Mrs. Smith ... x:x.SepalWidth/y ''s/before foo): bar",
    "One. Two.\u00a0\u00a0Three.\t(Four) five.  ) six. \u201cSeven\u201d eight.\n" * 4,
]


@pytest.fixture(scope="session")
def nasty() -> list[str]:
    """Texts that were made to go wrong."""
    lines = [
        "foo bar baz. ",
        "- the be, to.",
        "\u2022 of and that\u2026",
        "{x}",
        "see javascript docs here",
        "",
        "  two  spaces.  ) ok then",
    ]
    mixed = ["\n".join(lines[(7 * i + 3 * j * j) % len(lines)] for j in range(3 + i)) for i in range(40)]
    return NASTY + mixed


@pytest.fixture
def filtering_config(tmp_path: Path) -> Callable[[str], FilteringConfig]:
    """Load the section `filtering` from YAML text, as the command line does."""

    def load(text: str) -> FilteringConfig:
        return strict.load(FilteringConfig, strict.parse(text, "run.yaml"), "filtering")

    return load


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


Unit = Callable[..., Upstream]


@pytest.fixture
def make_unit(tmp_path: Path) -> Unit:
    """Write an ingestion unit and return it as upstream."""

    def make(texts: list[str], *, name: str = "u0", ids: list[str] | None = None, group_rows: int = 1000) -> Upstream:
        folder = tmp_path / "in" / name
        folder.mkdir(parents=True)
        ids = [f"{name}#{i}" for i in range(len(texts))] if ids is None else ids
        with GroupWriter(folder / "documents.parquet", DOCUMENTS) as writer:
            for start in range(0, len(texts), group_rows):
                part = slice(start, start + group_rows)
                size = len(texts[part])
                columns = {
                    "id": ids[part],
                    "position": list(range(start, start + size)),
                    "text": pa.array(texts[part], pa.large_string()),
                    "url": pa.nulls(size, pa.string()),
                    "metadata": pa.nulls(size, pa.string()),
                }
                writer.write(pa.table(columns))
        return _upstream(folder, "ingestion", name, Result(content=writer.content()))

    return make


def _upstream(folder: Path, node: str, key: str, result: Result) -> Upstream:
    manifest = Manifest(
        node=node, key=key, label=f"{node}({key})", version=1, section={}, upstream={},
        content=result.content, counts=result.counts, dropped=result.dropped, info=result.info,
    )  # fmt: skip
    manifest.check_counts()
    return Upstream(folder=folder, manifest=manifest)


@pytest.fixture
def run_node(tmp_path: Path) -> Callable[..., tuple[Upstream, Result]]:
    """Run a node's function as the job runner does, and return what it made."""
    number = iter(range(1000))

    def run(function: Any, section: Any, inputs: dict[str, Upstream], **extra: Any) -> tuple[Upstream, Result]:
        folder = tmp_path / "out" / str(next(number))
        folder.mkdir(parents=True)
        work = Work(
            node="n",
            key=folder.name,
            label="n",
            section=section,
            inputs=inputs,
            folder=folder,
            cache=tmp_path / "cache",
            **extra,
        )
        result = function(work)
        return _upstream(folder, "n", folder.name, result), result

    return run
