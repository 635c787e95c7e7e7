"""Plan node `deduplication.clusters`: which documents are the same, and which of them stays.

Documents of a scope (a source, a language, or all) are joined where the 128-bit hash of their text is equal
(`exact`, `minhash`) or one band of their signatures is (`minhash`). Held-out documents take part in every scope and win
their cluster: whatever is connected to one leaves. Otherwise the document stays whose source comes first in
`priority`, and among those the one with the smallest id; so the choice does not depend on units or their order.

`drops.parquet`: source, unit (key of the ingestion unit), row, reason, cluster, cluster_size; sorted, a row group per
unit with drops. `clusters.parquet`: source, unit, row of the survivor (null if it is held out), cluster, size,
held_out. `size` counts documents of the sources. A cluster's number comes from its survivor's text alone.

| reason | the document |
|---|---|
| held_out | is itself held out |
| exact_duplicate_of_held_out, near_duplicate_of_held_out | is in the cluster of a held-out one, with equal text or not |
| exact_duplicate, near_duplicate | is in the cluster of the survivor, with equal text or not |
| contaminated | contains an evaluation item; it takes no part in clusters |

Memory at 50 million documents: per document 4 bytes of row number, 8 of union-find and 6 while clusters are collected
(0.9 GB), 25 for each that is in a cluster (0.13 GB for each tenth of all documents), 0.2 GB of tables, and 0.35 GB of
libraries. Disk while it runs: 16 bytes per document and band (12 GB).
"""

import shutil
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from modalities.deduplication.config import ClustersSection
from modalities.deduplication.kernels import I64
from modalities.deduplication.nodes import HeldOut, Part, add_heldout, add_unit, read_heldout
from modalities.deduplication.survivors import Clusters, choose, largest
from modalities.deduplication.unions import TEXT, KeyFiles, Unions
from modalities.documents import GroupWriter
from modalities.work import Result, Work, digest_of

DROPS = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("unit", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("cluster", pa.uint64()),
        pa.field("cluster_size", pa.int64()),
    ]
)
CLUSTERS = pa.schema(
    [
        pa.field("source", pa.string()),
        pa.field("unit", pa.string()),
        pa.field("row", pa.int64()),
        pa.field("cluster", pa.uint64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("held_out", pa.bool_(), nullable=False),
    ]
)
REASONS = (
    "held_out",
    "exact_duplicate_of_held_out",
    "near_duplicate_of_held_out",
    "exact_duplicate",
    "near_duplicate",
    "contaminated",
)


def run(work: Work[ClustersSection]) -> Result:
    """Write drops and clusters of all scopes."""
    section = work.section
    heldout = read_heldout(work.inputs["heldout"])
    counts = {"documents": 0, "clusters": 0, "held_out_documents": len(heldout.ids)} | dict.fromkeys(REASONS, 0)
    histogram: dict[int, int] = {}
    listed: list[dict[str, Any]] = []
    with (
        GroupWriter(work.folder / "drops.parquet", DROPS) as drops,
        GroupWriter(work.folder / "clusters.parquet", CLUSTERS) as survivors,
    ):
        for scope, sources in scopes(section).items():
            with KeyFiles(work.folder / "scratch", bands=_num_bands(section)) as keys:
                parts, found = _find(work, keys, heldout=heldout, sources=sources, scope=scope)
            _write(parts, found, drops=drops, survivors=survivors, counts=counts)
            listed += largest(found, parts, heldout, number=section.report_clusters)
            for size, number in zip(*np.unique(found.sizes, return_counts=True), strict=True):
                histogram[int(size)] = histogram.get(int(size), 0) + int(number)
            shutil.rmtree(work.folder / "scratch")
    listed.sort(key=lambda entry: (-entry["size"], entry["cluster"]))
    info = {
        "largest": listed[: section.report_clusters],
        "cluster_sizes": {str(size): histogram[size] for size in sorted(histogram)},
        "scopes": {name: list(sources) for name, sources in scopes(section).items()},
    }
    return Result(content=digest_of(drops.content(), survivors.content()), counts=counts, info=info)


def scopes(section: ClustersSection) -> dict[str, list[str]]:
    """Return the sources of each scope, by its name."""
    names: dict[str, list[str]] = {}
    for source in sorted(section.languages):
        scope = {"source": source, "language": section.languages[source] or "", "global": ""}[section.scope]
        names.setdefault(scope, []).append(source)
    return names


def _num_bands(section: ClustersSection) -> int:
    return section.buckets if section.method == "minhash" else 0


def _find(
    work: Work[ClustersSection], keys: KeyFiles, *, heldout: HeldOut, sources: list[str], scope: str
) -> tuple[list[Part], Clusters]:
    """Return the documents of one scope and their clusters."""
    section = work.section
    add_heldout(
        keys,
        heldout,
        section=section,
        languages={section.languages[source] for source in sources},
        cache=work.cache / "deduplication",
    )
    num_heldout = keys.num_nodes
    parts = []
    units = [(source, unit) for source in sources for unit in work.inputs[f"signatures:{source}"].units]
    for number, (source, unit) in enumerate(units):
        parts.append(add_unit(keys, unit, source=source, section=section, heldout=heldout))
        work.progress.update(number + 1, len(units), "units")
    keys.close()
    exact, near = _unite(keys, parts, method=section.method)
    ranks = {
        source: section.priority.index(source) if source in section.priority else len(section.priority)
        for source in sources
    }
    salt = np.uint64(xxhash.xxh64_intdigest(scope) if scope else 0)
    found = choose(
        parts, exact=exact, near=near, num_heldout=num_heldout, ranks=ranks, hashes=keys.keys(TEXT), salt=salt
    )
    return parts, found


def _unite(keys: KeyFiles, parts: list[Part], *, method: str) -> tuple[Any, Any]:
    """Return the root of each node by equal text, and by equal text or band."""
    unions = Unions(keys.num_nodes)
    for part in parts:
        unions.join(part.held_number, part.first + part.held_at)
    if method != "none":
        unions.join_equal(keys.keys(TEXT))
    exact = unions.roots().copy()
    for name in keys.bands:
        unions.join_equal(keys.keys(name), keys.signed())
    return exact, unions.roots()


def _write(
    parts: list[Part], found: Clusters, *, drops: GroupWriter, survivors: GroupWriter, counts: dict[str, int]
) -> None:
    """Write the drops and survivors of one scope, unit by unit."""
    for part, members in found.by_part(parts):
        counts["documents"] += len(part.rows) + len(part.contaminated)
        cluster = found.cluster[members]
        node = found.members[members]
        stays = found.survivors[cluster] == node
        table = pa.concat_tables([_contaminated(part), _dropped(part, found, members[~stays])]).sort_by("row")
        for entry in table.column("reason").value_counts().to_pylist():
            counts[entry["values"]] += entry["counts"]
        if table.num_rows:
            drops.write(table)
        if stays.any():
            survivors.write(_survived(part, found, members[stays]))
    counts["clusters"] += int((found.sizes > 1).sum())
    held_out = np.flatnonzero(found.held_out)
    if len(held_out):
        survivors.write(
            pa.table(
                {
                    "source": pa.nulls(len(held_out), pa.string()),
                    "unit": pa.nulls(len(held_out), pa.string()),
                    "row": pa.nulls(len(held_out), pa.int64()),
                    "cluster": found.names[held_out],
                    "size": found.sizes[held_out],
                    "held_out": np.ones(len(held_out), np.bool_),
                }
            )
        )


def _contaminated(part: Part) -> pa.Table:
    size = len(part.contaminated)
    return pa.table(
        {
            "source": [part.source] * size,
            "unit": [part.unit] * size,
            "row": part.contaminated,
            "reason": ["contaminated"] * size,
            "cluster": pa.nulls(size, pa.uint64()),
            "cluster_size": pa.nulls(size, pa.int64()),
        },
        schema=DROPS,
    )


def _dropped(part: Part, found: Clusters, members: I64) -> pa.Table:
    cluster, local = found.cluster[members], found.members[members] - part.first
    equal, held = found.equal[members], found.held_out[cluster]
    code = np.select([np.isin(local, part.held_at), held & equal, held, equal], [0, 1, 2, 3], 4)
    return pa.table(
        {
            "source": [part.source] * len(members),
            "unit": [part.unit] * len(members),
            "row": part.rows[local].astype(np.int64),
            "reason": pa.array(REASONS).take(pa.array(code)),
            "cluster": found.names[cluster],
            "cluster_size": found.sizes[cluster],
        },
        schema=DROPS,
    )


def _survived(part: Part, found: Clusters, members: I64) -> pa.Table:
    cluster, local = found.cluster[members], found.members[members] - part.first
    return pa.table(
        {
            "source": [part.source] * len(members),
            "unit": [part.unit] * len(members),
            "row": part.rows[local].astype(np.int64),
            "cluster": found.names[cluster],
            "size": found.sizes[cluster],
            "held_out": np.zeros(len(members), np.bool_),
        }
    )
