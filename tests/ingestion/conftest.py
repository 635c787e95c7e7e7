"""Fixtures: one source, one config, and what comes of it."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from modalities.ingestion import inputs, stage
from modalities.ingestion.config import IngestionConfig, Source, section
from modalities.manifest import Manifest
from modalities.work import Result, Upstream, Work


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ingested:
    """All units of a source, joined."""

    units: list[dict[str, Any]]
    results: list[Result]
    documents: list[dict[str, Any]]
    rejects: list[dict[str, Any]]
    whole: Result

    @property
    def texts(self) -> list[str]:
        return [document["text"] for document in self.documents]

    @property
    def reasons(self) -> list[str]:
        return [reject["reason"] for reject in self.rejects]


Ingest = Callable[..., Ingested]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests, as the address lists take seconds to unpack."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def ingest(tmp_path: Path, cache: Path) -> Iterator[Ingest]:
    """Return a function that ingests files below `tmp_path / "in"`; keys of source and config may be given."""
    names = {field.name for field in dataclasses.fields(Source)}
    numbers = iter(range(1_000_000))

    def run(*paths: str, **keys: Any) -> Ingested:
        own = {name: value for name, value in keys.items() if name in names}
        rest = {name: value for name, value in keys.items() if name not in names}
        config = IngestionConfig(sources={"s": Source(paths=paths or ("*",), **own)}, **({"url_filter": False} | rest))
        units = inputs.units(config, "s", tmp_path / "in", cache)
        made = []
        for unit in units:
            folder = tmp_path / "out" / str(next(numbers))
            folder.mkdir(parents=True)
            work = Work(
                node="ingestion",
                key="k",
                label="ingestion(s)",
                section=section(config, "s"),
                inputs={},
                folder=folder,
                unit=json.loads(json.dumps(unit)),
                cache=cache,
            )
            made.append((folder, stage.run_unit(work)))
        for _, result in made:
            counts = result.counts
            assert counts["documents_in"] == counts["documents_out"] + sum(result.dropped.values())
            json.dumps(dict(result.info), allow_nan=False)
        upstream = tuple(_upstream(folder, result) for folder, result in made)
        whole = stage.gather(dataclasses.replace(work, own_units=upstream, folder=tmp_path))
        return Ingested(
            units=units,
            results=[result for _, result in made],
            documents=[row for folder, _ in made for row in pq.read_table(folder / "documents.parquet").to_pylist()],
            rejects=[row for folder, _ in made for row in pq.read_table(folder / "rejects.parquet").to_pylist()],
            whole=whole,
        )

    (tmp_path / "in").mkdir()
    yield run


def _upstream(folder: Path, result: Result) -> Upstream:
    manifest = Manifest(
        node="ingestion",
        key="k",
        label="ingestion(s)",
        version=1,
        section={},
        upstream={},
        content=result.content,
        counts=result.counts,
        dropped=result.dropped,
        info=result.info,
    )
    manifest.check_counts()
    return Upstream(folder=folder, manifest=manifest)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes | str], Path]:
    """Return a function that writes an input file."""

    def run(name: str, data: bytes | str) -> Path:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
        return path

    return run


@pytest.fixture
def demo() -> Path:
    """The shipped corpus."""
    return Path(__file__).parents[2] / "data" / "demo"
