"""A small store made by hand: ingestion, filtering and held-out units, and runners of the three nodes over them."""

import dataclasses
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modalities.deduplication import clusters, signatures, stage
from modalities.deduplication import config as keys
from modalities.documents import DOCUMENTS, GroupWriter, decisions
from modalities.manifest import Manifest
from modalities.work import Result, Upstream, Work

ROOT = Path(__file__).parents[2]
HELDOUT = pa.schema(
    [(name, pa.string()) for name in ("source", "unit", "id", "text", "language")] + [("row", pa.int64())]
)


@dataclasses.dataclass(frozen=True)
class Document:
    """A document of a test: what matters of it."""

    id: str
    text: str
    keep: bool = True


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the nodes made."""

    kept: dict[str, set[str]]
    """Source -> ids."""
    reasons: dict[tuple[str, str], str]
    """(source, id) -> reason of what was dropped here."""
    sizes: dict[tuple[str, str], int | None]
    signatures: dict[str, list[Result]]
    clusters: Result
    decisions: dict[str, list[Result]]
    folders: list[Path]


class Store:
    """Writes units into a folder and runs nodes on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0

    def new(self) -> Path:
        self.number += 1
        folder = self.folder / f"{self.number:05d}"
        folder.mkdir()
        return folder

    def ingest(self, documents: Sequence[Document], key: str, *, group_rows: int = 3) -> Upstream:
        folder = self.new()
        with GroupWriter(folder / "documents.parquet", DOCUMENTS) as writer:
            for start in range(0, len(documents), group_rows):
                some = documents[start : start + group_rows]
                columns = {
                    "id": [d.id for d in some],
                    "position": list(range(start, start + len(some))),
                    "text": [d.text for d in some],
                    "url": [None] * len(some),
                    "metadata": [None] * len(some),
                }
                writer.write(pa.table(columns, schema=DOCUMENTS))
        return upstream(folder, "ingestion", key)

    def filter(self, documents: Sequence[Document], key: str, *, group_rows: int = 3) -> Upstream:
        folder = self.new()
        schema = pa.schema([pa.field("keep", pa.bool_(), nullable=False), pa.field("reason", pa.string())])
        with GroupWriter(folder / "filtering.parquet", schema) as writer:
            for start in range(0, len(documents), group_rows):
                keep = np.array([d.keep for d in documents[start : start + group_rows]])
                writer.write(decisions(keep, pa.array(["short"] * len(keep), pa.string())))
        return upstream(folder, "filtering", key)

    def heldout(self, rows: Sequence[Mapping[str, Any]]) -> Upstream:
        folder = self.new()
        table = {name: [row.get(name) for row in rows] for name in HELDOUT.names}
        pq.write_table(pa.table(table, schema=HELDOUT), folder / "documents.parquet")
        return upstream(folder, "heldout", "h")

    def work(self, node: str, section: Any, inputs: Mapping[str, Upstream]) -> Work[Any]:
        return Work(
            node=node,
            key="k",
            label=node,
            section=section,
            inputs=inputs,
            folder=self.new(),
            cache=self.folder / "cache",
        )

    def run(
        self,
        sources: Mapping[str, Sequence[Sequence[Document]]],
        config: keys.DeduplicationConfig,
        *,
        languages: Mapping[str, str | None] | None = None,
        heldout: Sequence[Mapping[str, Any]] = (),
        unit_keys: Mapping[str, Sequence[str]] | None = None,
    ) -> Outcome:
        """Run all three nodes. `sources`: name -> units of documents."""
        languages = languages or dict.fromkeys(sources, "en")
        unit_keys = unit_keys or {name: [f"{name}-{i}" for i in range(len(units))] for name, units in sources.items()}
        made: dict[str, list[tuple[Upstream, Upstream, Upstream]]] = {}
        results: dict[str, list[Result]] = {}
        for name, units in sources.items():
            section = keys.signatures_section(config, languages[name])
            for documents, key in zip(units, unit_keys[name], strict=True):
                pair = {"ingestion": self.ingest(documents, key), "filtering": self.filter(documents, key)}
                work = self.work("deduplication.signatures", section, pair)
                results.setdefault(name, []).append(signatures.run_unit(work))
                own = upstream(
                    work.folder, "deduplication.signatures", f"s-{name}-{key}", {"ingestion": pair["ingestion"]}
                )
                made.setdefault(name, []).append((*pair.values(), own))
        inputs = {
            f"signatures:{name}": upstream(
                self.folder, "deduplication.signatures", name, units=[u[2] for u in made.get(name, [])]
            )
            for name in sources
        }
        work = self.work(
            "deduplication.clusters",
            keys.clusters_section(config, languages),
            inputs | {"heldout": self.heldout(heldout)},
        )
        clustered = clusters.run(work)
        return self._decide(
            sources, config, made, results, clustered, upstream(work.folder, "deduplication.clusters", "c")
        )

    def _decide(
        self, sources: Any, config: Any, made: Any, results: Any, clustered: Result, found: Upstream
    ) -> Outcome:
        outcome = Outcome({}, {}, {}, results, clustered, {}, [found.folder])
        for name, units in sources.items():
            outcome.kept[name] = set()
            for documents, (ingestion, filtering, own) in zip(units, made.get(name, []), strict=True):
                inputs = {"ingestion": ingestion, "filtering": filtering, "signatures": own, "clusters": found}
                work = self.work("deduplication", keys.section(config, name), inputs)
                outcome.decisions.setdefault(name, []).append(stage.run_unit(work))
                outcome.folders.append(work.folder)
                table = pq.read_table(work.folder / "deduplication.parquet")
                assert table.num_rows == len(documents)
                for document, row in zip(documents, table.to_pylist(), strict=True):
                    outcome.sizes[name, document.id] = row["cluster_size"]
                    if row["keep"]:
                        outcome.kept[name].add(document.id)
                    elif row["reason"] != "filtering":
                        outcome.reasons[name, document.id] = row["reason"]
        return outcome


def upstream(
    folder: Path, node: str, key: str, made_from: Mapping[str, Upstream] | None = None, units: Sequence[Upstream] = ()
) -> Upstream:
    before = {
        role: {"node": u.manifest.node, "key": u.manifest.key, "content": u.content}
        for role, u in (made_from or {}).items()
    }
    manifest = Manifest(
        node=node, key=key, label=node, version=1, section={}, upstream=before, content=f"content-{key}"
    )
    return Upstream(folder=folder, manifest=manifest, units=tuple(units))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def make() -> Callable[..., Document]:
    return Document


@pytest.fixture(scope="session")
def novels() -> list[str]:
    """Texts of the shipped novels."""
    with gzip.open(ROOT / "data/demo/austen.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


@pytest.fixture(scope="session")
def pages() -> dict[str, list[str]]:
    """Texts of shipped help pages by language, tags removed, otherwise as raw as they come."""
    import re

    from warcio.archiveiterator import ArchiveIterator

    texts: dict[str, list[str]] = {"en": [], "de": []}
    for path in sorted((ROOT / "data/demo").glob("*.warc.gz"))[:2]:
        with path.open("rb") as file:
            for record in ArchiveIterator(file):
                if record.rec_type != "response":
                    continue
                html = record.content_stream().read().decode("utf-8", "replace")
                text = re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", html, flags=re.S)
                language = re.search(r'lang="(en|de)', html)
                texts[language.group(1) if language else "en"].append(text)
    return texts


def _words(seed: int, count: int) -> Iterator[str]:
    rng = np.random.default_rng(seed)
    for length in rng.integers(2, 9, count):
        yield "".join(chr(c) for c in rng.integers(97, 123, length))


@pytest.fixture
def prose() -> Callable[..., str]:
    """Return a text of random words that no other seed shares; `change` replaces so many words at its end."""

    def make_text(seed: int, *, count: int = 120, change: int = 0) -> str:
        words = list(_words(seed, count))
        if change:
            words[-change:] = list(_words(seed + 1_000_000, change))
        return " ".join(words)

    return make_text
