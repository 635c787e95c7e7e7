"""Build packed data sets from lists of documents, as the nodes before packing would leave them."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

from modalities.manifest import Manifest
from modalities.packing import config, stage
from modalities.packing.reader import SequenceReader
from modalities.tokens import ShardWriter
from modalities.work import Result, Upstream, Work, digest_of

Documents = Sequence[Sequence[int]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packed:
    """A packed data set and what it was made of."""

    packing: Upstream
    tokenization: dict[str, Upstream]
    result: Result

    def reader(self, data_seed: int = 0, *, cross_documents: bool = True) -> SequenceReader:
        return SequenceReader.open(
            self.packing, self.tokenization, data_seed=data_seed, cross_documents=cross_documents
        )


def manifest(node: str, key: str, result: Result) -> Manifest:
    made = Manifest(
        node=node,
        key=key,
        label=f"{node}({key})",
        version=1,
        section={},
        upstream={},
        content=result.content,
        counts=result.counts,
        dropped=result.dropped,
        info=result.info,
    )
    made.check_counts()
    return made


def write_shard(folder: Path, documents: Documents, *, dtype: str = "<u2", masks: Documents | None = None) -> Upstream:
    """Write a token shard and return it as a unit of tokenization."""
    folder.mkdir(parents=True)
    flat = np.asarray([token for document in documents for token in document], np.int64)
    lengths = np.asarray([len(document) for document in documents], np.int64)
    mask = None if masks is None else np.asarray([flag for document in masks for flag in document], np.uint8)
    with ShardWriter(folder / "tokens", dtype=np.dtype(dtype)) as writer:
        if len(documents) > 0:
            writer.write(flat, lengths, mask=mask)
        writer.finish()
    content = digest_of([list(map(int, document)) for document in documents], masks is not None)
    return Upstream(folder=folder, manifest=manifest("tokenization", folder.name, Result(content=content)))


def pack_unit(shard: Upstream, folder: Path, source: str, settings: config.PackingConfig) -> Upstream:
    """Run the unit of packing for one token shard."""
    folder.mkdir(parents=True)
    work = Work(
        node="packing",
        key=folder.name,
        label=f"packing({folder.name})",
        section=config.unit_section(settings),
        inputs={"tokenization": shard},
        folder=folder,
        unit={"source": source},
        cache=folder,
    )
    result = stage.run_unit(work)
    return Upstream(folder=folder, manifest=manifest("packing", folder.name, result))


def pack(
    root: Path,
    shards: dict[str, list[Upstream]],
    settings: config.PackingConfig,
    *,
    budget_tokens: int | None = None,
) -> Packed:
    """Run all units and the gather."""
    units, tokenization = [], {}
    for source, parts in shards.items():
        for number, shard in enumerate(parts):
            units.append(pack_unit(shard, root / f"packing-{source}-{number}", source, settings))
        whole = manifest("tokenization", source, Result(content=digest_of([part.content for part in parts])))
        tokenization[source] = Upstream(folder=root, manifest=whole, units=tuple(parts))
    folder = root / "packing"
    folder.mkdir()
    work: Work[config.PackingSection] = Work(
        node="packing",
        key="packing",
        label="packing",
        section=config.section(settings, tuple(shards), budget_tokens=budget_tokens),
        inputs={f"tokenization:{source}": upstream for source, upstream in tokenization.items()},
        folder=folder,
        own_units=tuple(units),
        cache=root,
    )
    result = stage.gather(work)
    packing = Upstream(folder=folder, manifest=manifest("packing", "packing", result), units=tuple(units))
    return Packed(packing=packing, tokenization=tokenization, result=result)


@pytest.fixture
def pack_documents(tmp_path: Path) -> Callable[..., Packed]:
    """Return a function from `{source: [documents of a shard, ...]}` and settings to a packed data set."""
    calls = iter(range(1_000_000))

    def build(
        sources: dict[str, list[Documents]],
        *,
        dtype: str | dict[str, str] = "<u2",
        budget_tokens: int | None = None,
        masks: dict[str, list[Documents]] | None = None,
        **settings: Any,
    ) -> Packed:
        root = tmp_path / str(next(calls))
        shards = {
            source: [
                write_shard(
                    root / f"shard-{source}-{number}",
                    documents,
                    dtype=dtype if isinstance(dtype, str) else dtype[source],
                    masks=None if masks is None or source not in masks else masks[source][number],
                )
                for number, documents in enumerate(parts)
            ]
            for source, parts in sources.items()
        }
        return pack(root, shards, config.PackingConfig(**settings), budget_tokens=budget_tokens)

    return build
