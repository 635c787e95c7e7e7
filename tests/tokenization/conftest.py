"""Units, upstreams and works made by hand, and demo texts."""

import gzip
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from modalities.documents import DOCUMENTS, GroupWriter, decisions, metadata_json
from modalities.manifest import Manifest
from modalities.tokenization import tokenizer as tokenizer_node
from modalities.tokenization.config import (
    TokenizationConfig,
    TrainingConfig,
    section,
    tokenizer_section,
)
from modalities.work import Result, Upstream, Work

DEMO = Path(__file__).parents[2] / "data/demo/austen.jsonl.gz"


def _manifest(node: str, result: Result | None = None, **counts: int) -> Manifest:
    return Manifest(
        node=node,
        key="k",
        label=node,
        version=1,
        section={},
        upstream={},
        content=result.content if result else "",
        counts=result.counts if result else counts,
        dropped=result.dropped if result else {},
        info=result.info if result else {},
    )


@pytest.fixture
def upstream() -> Callable[..., Upstream]:
    """Wrap a folder and what its node returned."""

    def make(folder: Path, result: Result | None = None, units: Sequence[Upstream] = (), **counts: int) -> Upstream:
        return Upstream(folder=folder, manifest=_manifest("upstream", result, **counts), units=tuple(units))

    return make


@pytest.fixture
def unit_of(tmp_path: Path, upstream: Callable[..., Upstream]) -> Callable[..., dict[str, Upstream]]:
    """Write one unit of documents with the masks of later stages: a row per text, in groups of `group_rows`."""
    numbers = itertools.count()

    def make(
        texts: Sequence[str],
        *,
        keep: Sequence[bool] | None = None,
        duplicate: Sequence[bool] | None = None,
        rewritten: Mapping[int, str] | None = None,
        masked: Mapping[int, str] | None = None,
        metadata: Mapping[int, Mapping[str, Any]] | None = None,
        language: str = "en",
        group_rows: int = 3,
    ) -> dict[str, Upstream]:
        root = tmp_path / f"unit{next(numbers)}"
        n = len(texts)
        kept = np.array(keep if keep is not None else [True] * n, bool)
        unique = ~np.array(duplicate if duplicate is not None else [False] * n, bool)
        meta = [metadata_json((metadata or {}).get(i, {})) for i in range(n)]
        tables = {
            "documents": pa.table(
                {
                    "id": [f"d{i}" for i in range(n)],
                    "position": range(n),
                    "text": texts,
                    "url": [None] * n,
                    "metadata": meta,
                },
                DOCUMENTS,
            ),
            "scores": pa.table(
                {
                    "language": pa.array([language] * n, pa.string()),
                    "text": pa.array([(rewritten or {}).get(i) for i in range(n)], pa.large_string()),
                }
            ),
            "filtering": _decided(kept).append_column(
                "masked", pa.array([(masked or {}).get(i) for i in range(n)], pa.large_string())
            ),
            "deduplication": _decided(unique),
        }
        unit = {}
        for name, table in tables.items():
            role = "ingestion" if name == "documents" else name
            folder = root / role
            folder.mkdir(parents=True)
            with GroupWriter(folder / f"{name}.parquet", table.schema) as writer:
                for start in range(0, n, group_rows):
                    writer.write(table.slice(start, group_rows))
            counts = {"documents_out": n if role == "ingestion" else int((kept & unique).sum())}
            if role == "ingestion":
                counts["text_bytes"] = sum(len(text.encode()) for text in texts)
            unit[role] = upstream(folder, **counts)
        return unit

    return make


def _decided(keep: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Table:
    return decisions(keep, pa.array(["a reason"] * len(keep)))


@pytest.fixture
def source_of(upstream: Callable[..., Upstream], tmp_path: Path) -> Callable[..., dict[str, Upstream]]:
    """Put units together as the inputs `<role>:<source>` of a node that reads whole sources."""

    def make(name: str, units: Sequence[Mapping[str, Upstream]]) -> dict[str, Upstream]:
        inputs = {}
        for role in units[0]:
            counts: dict[str, int] = {}
            for unit in units:
                for key, value in unit[role].manifest.counts.items():
                    counts[key] = counts.get(key, 0) + value
            inputs[f"{role}:{name}"] = upstream(tmp_path, units=[unit[role] for unit in units], **counts)
        return inputs

    return make


@pytest.fixture
def work_of(tmp_path: Path) -> Callable[..., Work[Any]]:
    """Make a work with an empty folder."""
    numbers = itertools.count()

    def make(section_: Any, inputs: Mapping[str, Upstream], **more: Any) -> Work[Any]:
        folder = tmp_path / f"work{next(numbers)}"
        folder.mkdir()
        return Work(
            node="n",
            key="k",
            label="tokenization(test)",
            section=section_,
            inputs=inputs,
            folder=folder,
            cache=tmp_path / "cache",
            **more,
        )

    return make


@pytest.fixture(scope="session")
def demo_texts() -> list[str]:
    """A few hundred kilobytes of the demo's novels."""
    texts: list[str] = []
    with gzip.open(DEMO, "rt", encoding="utf-8") as lines:
        for line in lines:
            text = json.loads(line)["text"]
            texts.extend(text[i : i + 4000] for i in range(0, min(len(text), 100_000), 4000))
            if sum(map(len, texts)) > 400_000:
                break
    return texts


@pytest.fixture
def trained(
    demo_texts: list[str],
    unit_of: Callable[..., dict[str, Upstream]],
    source_of: Callable[..., dict[str, Upstream]],
    work_of: Callable[..., Work[Any]],
    upstream: Callable[..., Upstream],
) -> Callable[..., Upstream]:
    """Train a tokenizer of 600 ids on the demo and return it as an input."""

    def make(*, chat_template: Path | None = None, special_tokens: tuple[str, ...] = (), **more: Any) -> Upstream:
        config = TokenizationConfig(
            train=TrainingConfig(vocab_size=600, special_tokens=special_tokens), chat_template=chat_template, **more
        )
        inputs = source_of("novels", [unit_of(demo_texts[:40], group_rows=10)])
        work = work_of(tokenizer_section(config, ("novels",)), inputs)
        return upstream(work.folder, tokenizer_node.run(work))

    return make


@pytest.fixture
def plain_section() -> Any:
    """The section of `tokenization` with every document verified."""
    return section(TokenizationConfig(verify_share=1.0))
