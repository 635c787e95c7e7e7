"""Where documents went: counts by stage and reason, examples of what was dropped, lengths and languages.

Counts come from manifests and cover everything. Examples and histograms come from the documents themselves, from at most
`SAMPLE_GROUPS` row groups per source, and say how many documents that was.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from modalities.documents import GroupReader
from modalities.reporting.instances import Instance, first, pick
from modalities.work import Upstream

SAMPLE_GROUPS = 32
UNLISTED = "filtering"
"""Reason of rows in a deduplication file that filtering had dropped before."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """What one node did to the documents of a source."""

    node: str
    key: str
    documents_in: int
    documents_out: int
    dropped: Mapping[str, int]
    text_bytes: int | None
    tokens: int | None
    balanced: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """The beginning of a dropped document."""

    id: str
    node: str
    reason: str
    excerpt: str
    num_characters: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bin:
    """Documents of one length class or language, kept and dropped."""

    label: str
    kept: int
    dropped: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Funnel:
    """The way of one source's documents."""

    source: str
    variants: tuple[str, ...]
    stages: tuple[Stage, ...]
    examples: tuple[Example, ...]
    lengths: tuple[Bin, ...]
    languages: tuple[Bin, ...]
    sampled_documents: int
    total_documents: int


def read_funnels(variants: Mapping[str, Sequence[Instance]], *, examples: int, characters: int) -> list[Funnel]:
    """Return a funnel per source and per distinct treatment; variants that share all instances share one."""
    shared: dict[tuple[str, ...], list[str]] = {}
    chains: dict[tuple[str, ...], tuple[str, list[Instance]]] = {}
    for variant, instances in variants.items():
        for ingestion in pick(instances, "ingestion"):
            chain = [ingestion]
            for node in ("filtering.scores", "filtering", "deduplication", "tokenization"):
                found = first(instances, node, scope=ingestion.scope)
                chain += [found] if found is not None else []
            identity = (ingestion.scope, *(i.key for i in chain))
            shared.setdefault(identity, []).append(variant)
            chains[identity] = (ingestion.scope, chain)
    return [
        _funnel(source, chain, tuple(shared[identity]), examples=examples, characters=characters)
        for identity, (source, chain) in chains.items()
    ]


def _funnel(
    source: str, chain: Sequence[Instance], variants: tuple[str, ...], *, examples: int, characters: int
) -> Funnel:
    stages = tuple(s for i in chain if i.node != "filtering.scores" if (s := _stage(i)) is not None)
    sample = _Sample(examples=examples, characters=characters)
    for unit in _units(chain[0].upstream)[:SAMPLE_GROUPS]:
        sample.add_rejects(unit)
    for group in _groups({i.node: i.upstream for i in chain}):
        sample.add(group)
    return Funnel(
        source=source,
        variants=variants,
        stages=stages,
        examples=tuple(sample.examples),
        lengths=_length_bins(sample.lengths),
        languages=_language_bins(sample.languages),
        sampled_documents=sample.num_documents,
        total_documents=stages[0].documents_out if stages else sample.num_documents,
    )


def _stage(instance: Instance) -> Stage | None:
    manifest = instance.manifest
    counts = manifest.counts
    if "documents_in" not in counts:
        return None
    text_bytes = next((counts[n] for n in ("text_bytes_out", "text_bytes") if n in counts), None)
    dropped = dict(sorted(manifest.dropped.items(), key=lambda item: (-item[1], item[0])))
    return Stage(
        node=instance.node,
        key=instance.key,
        documents_in=counts["documents_in"],
        documents_out=counts["documents_out"],
        dropped=dropped,
        text_bytes=text_bytes,
        tokens=counts.get("tokens"),
        balanced=counts["documents_in"] == counts["documents_out"] + sum(dropped.values()),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Group:
    ids: pa.Array
    texts: pa.Array
    languages: pa.Array | None
    decisions: Mapping[str, tuple[np.ndarray[Any, Any], pa.Array]]
    """Node -> keep flags and reasons."""


def _groups(chain: Mapping[str, Upstream]) -> Iterator[_Group]:
    """Yield the first row groups of a source with the decisions on them, unit by unit."""
    files = {
        "ingestion": "documents",
        "filtering.scores": "scores",
        "filtering": "filtering",
        "deduplication": "deduplication",
    }
    left = SAMPLE_GROUPS
    for index in range(len(_units(chain["ingestion"]))):
        paths = {
            node: _units(chain[node])[index].folder / f"{name}.parquet"
            for node, name in files.items()
            if node in chain and index < len(_units(chain[node]))
        }
        readers = {node: GroupReader(path) for node, path in paths.items() if path.exists()}
        if "ingestion" not in readers:
            continue
        for number in range(min(left, readers["ingestion"].num_groups)):
            yield _group(readers, number)
        left -= readers["ingestion"].num_groups
        if left <= 0:
            return


def _units(upstream: Upstream) -> tuple[Upstream, ...]:
    return upstream.units or (upstream,)


def _group(readers: Mapping[str, GroupReader], number: int) -> _Group:
    base = readers["ingestion"].group(number, ["id", "text"])
    languages = None
    if "filtering.scores" in readers and "language" in readers["filtering.scores"].columns:
        languages = readers["filtering.scores"].group(number, ["language"]).column("language").combine_chunks()
    decisions = {}
    for node in ("filtering", "deduplication"):
        if node in readers:
            table = readers[node].group(number, ["keep", "reason"])
            decisions[node] = (table.column("keep").to_numpy(), table.column("reason").combine_chunks())
    return _Group(ids=base.column("id"), texts=base.column("text"), languages=languages, decisions=decisions)


class _Sample:
    """Examples and histograms, group by group."""

    def __init__(self, *, examples: int, characters: int) -> None:
        self._wanted = examples
        self._characters = characters
        self._seen: Counter[tuple[str, str]] = Counter()
        self.examples: list[Example] = []
        self.lengths: Counter[tuple[int, bool]] = Counter()
        self.languages: Counter[tuple[str, bool]] = Counter()
        self.num_documents = 0

    def add(self, group: _Group) -> None:
        """Count a row group, and take examples of reasons that still lack some."""
        rows = len(group.ids)
        self.num_documents += rows
        keep = np.ones(rows, np.bool_)
        for flags, _ in group.decisions.values():
            keep &= flags
        sizes = pc.binary_length(group.texts).to_numpy()
        classes = np.floor(np.log2(np.maximum(sizes, 1))).astype(np.int64)
        for kept in (True, False):
            for size, count in zip(*np.unique(classes[keep == kept], return_counts=True), strict=True):
                self.lengths[int(size), kept] += int(count)
        if group.languages is not None:
            self.languages.update(
                zip((str(n) if n is not None else "?" for n in group.languages.to_pylist()), keep.tolist(), strict=True)
            )
        for node, (flags, reasons) in group.decisions.items():
            self._take(group, node, flags, reasons)

    def add_rejects(self, unit: Upstream) -> None:
        """Take examples of records that ingestion refused: their position is their name."""
        path = unit.folder / "rejects.parquet"
        if self._wanted == 0 or not path.exists():
            return
        for table in GroupReader(path).groups(["position", "reason", "excerpt"]):
            for row in table.to_pylist():
                reason, text = str(row["reason"]), str(row["excerpt"] or "")
                if self._seen["ingestion", reason] < self._wanted:
                    self._seen["ingestion", reason] += 1
                    self.examples.append(
                        Example(
                            id=f"position {row['position']}",
                            node="ingestion",
                            reason=reason,
                            excerpt=text[: self._characters],
                            num_characters=len(text),
                        )
                    )

    def _take(self, group: _Group, node: str, flags: np.ndarray[Any, Any], reasons: pa.Array) -> None:
        names = reasons.to_pylist() if self._wanted > 0 else []
        for row in np.flatnonzero(~flags) if names else ():
            reason = str(names[row])
            if (node == "deduplication" and reason == UNLISTED) or self._seen[node, reason] >= self._wanted:
                continue
            self._seen[node, reason] += 1
            text = group.texts[int(row)].as_py()
            excerpt = text[: self._characters]
            identity = group.ids[int(row)].as_py()
            example = Example(id=identity, node=node, reason=reason, excerpt=excerpt, num_characters=len(text))
            self.examples.append(example)


def _length_bins(counts: Mapping[tuple[int, bool], int]) -> tuple[Bin, ...]:
    if not counts:
        return ()
    sizes = [size for size, _ in counts]
    return tuple(
        Bin(label=_power(size), kept=counts.get((size, True), 0), dropped=counts.get((size, False), 0))
        for size in range(min(sizes), max(sizes) + 1)
    )


def _power(exponent: int) -> str:
    step = exponent // 10
    return f"{2 ** (exponent - 10 * step)} {('B', 'KiB', 'MiB', 'GiB')[min(step, 3)]}"


def _language_bins(counts: Mapping[tuple[str, bool], int], most: int = 11) -> tuple[Bin, ...]:
    totals: Counter[str] = Counter()
    for (name, _), count in counts.items():
        totals[name] += count
    names = [name for name, _ in totals.most_common()]
    shown = names if len(names) <= most + 1 else names[:most]
    bins = [Bin(label=n, kept=counts.get((n, True), 0), dropped=counts.get((n, False), 0)) for n in shown]
    rest = names[len(shown) :]
    if rest:
        kept, dropped = (sum(counts.get((n, flag), 0) for n in rest) for flag in (True, False))
        bins.append(Bin(label=f"{len(rest)} others", kept=kept, dropped=dropped))
    return tuple(bins)
