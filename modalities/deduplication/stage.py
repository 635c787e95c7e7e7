"""Plan node `deduplication`: look up what the clusters say of each document of a unit.

`deduplication.parquet`, row-aligned with ingestion: keep, reason, cluster, cluster_size, contaminated. `cluster_size` is the
number of documents that a kept document stands for (1 if it has no duplicate), so that up-sampling by cluster size
needs nothing else. Documents in are those that filtering kept.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from modalities.deduplication import signatures
from modalities.deduplication.config import DeduplicationSection
from modalities.documents import DECISION_FIELDS, GroupReader, GroupWriter, decisions
from modalities.errors import StoreError
from modalities.work import Result, Work

FILE = "deduplication.parquet"
SCHEMA = pa.schema(
    [
        *DECISION_FIELDS,
        pa.field("cluster", pa.uint64()),
        pa.field("cluster_size", pa.int64()),
        pa.field("contaminated", pa.string()),
    ]
)
SAMPLES_PER_REASON = 3
Bools = np.ndarray[Any, np.dtype[np.bool_]]


def run_unit(work: Work[DeduplicationSection]) -> Result:
    """Write the decisions of one unit."""
    unit = work.inputs["ingestion"].manifest.key
    folder = work.inputs["clusters"].folder
    drops = _of_unit(folder / "drops.parquet", source=work.section.source, unit=unit)
    survivors = _of_unit(folder / "clusters.parquet", source=work.section.source, unit=unit)
    compared = GroupReader(work.inputs["signatures"].folder / signatures.FILE)
    filtered = GroupReader(work.inputs["filtering"].folder / "filtering.parquet")
    first_row = 0
    counts, dropped = {"documents_in": 0, "documents_out": 0}, dict[str, int]()
    samples: dict[str, list[dict[str, str]]] = {}
    with GroupWriter(work.folder / FILE, SCHEMA) as writer:
        for index in range(filtered.num_groups):
            columns = compared.group(index, ["text_high", "contaminated", "id", "excerpt"])
            into = filtered.group(index, ["keep"]).column("keep").to_numpy()
            _check(columns, into, compared.path)
            some = [_slice(rows, first_row, len(into)) for rows in (drops, survivors)]
            table = _decide(into, *some, contaminated=columns.column("contaminated"))
            writer.write(table)
            _count(table, into, counts, dropped)
            _sample(table, columns, samples)
            first_row += len(into)
    return Result(content=writer.content(), counts=counts, dropped=dropped, info={"samples": samples})


def _of_unit(path: Path, *, source: str, unit: str) -> pa.Table:
    """Return the rows of one unit, sorted by row. Row groups of other units are skipped."""
    table = pq.read_table(path, filters=[("source", "=", source), ("unit", "=", unit)], use_threads=False)
    return table.sort_by("row")


def _check(columns: pa.Table, into: Bools, path: Path) -> None:
    if not np.array_equal(columns.column("text_high").is_valid().to_numpy(), into):
        raise StoreError(
            f"{path}: expected a text hash for exactly the documents that filtering kept, got others; "
            f"run `modalities store verify`"
        )


def _slice(rows: pa.Table, first: int, size: int) -> pa.Table:
    """Return the entries of a row group, their rows counted from its first."""
    numbers = rows.column("row").to_numpy()
    start, stop = np.searchsorted(numbers, [first, first + size])
    return rows.slice(start, stop - start).set_column(
        rows.schema.get_field_index("row"), "row", pa.array(numbers[start:stop] - first)
    )


def _decide(into: Bools, drops: pa.Table, survivors: pa.Table, *, contaminated: pa.ChunkedArray) -> pa.Table:
    """Return the decisions of one row group; `into` marks what filtering kept."""
    size = len(into)
    gone = drops.column("row").to_numpy()
    keep = into.copy()
    keep[gone] = False
    reason = np.full(size, "filtering", dtype=object)
    reason[gone] = drops.column("reason").to_numpy(zero_copy_only=False)
    cluster, known, sizes = np.zeros(size, np.uint64), np.zeros(size, np.bool_), into.astype(np.int64)
    for entries, column in ((drops, "cluster_size"), (survivors, "size")):
        rows = entries.column("row").to_numpy()
        cluster[rows] = pc.fill_null(entries.column("cluster"), 0).to_numpy()
        known[rows] = entries.column("cluster").is_valid().to_numpy()
        sizes[rows] = pc.fill_null(entries.column(column), 1).to_numpy()
    decided = decisions(keep, pa.array(reason, pa.string()))
    decided = decided.append_column("cluster", pa.array(cluster, mask=~known))
    decided = decided.append_column("cluster_size", pa.array(sizes, mask=~into))
    return decided.append_column("contaminated", contaminated)


def _count(table: pa.Table, into: Bools, counts: dict[str, int], dropped: dict[str, int]) -> None:
    keep = table.column("keep").to_numpy()
    counts["documents_in"] += int(into.sum())
    counts["documents_out"] += int(keep.sum())
    lost = table.column("reason").filter(pa.array(into & ~keep))
    for entry in lost.value_counts().to_pylist():
        dropped[entry["values"]] = dropped.get(entry["values"], 0) + entry["counts"]


def _sample(table: pa.Table, columns: pa.Table, samples: dict[str, list[dict[str, str]]]) -> None:
    """Add the first documents of each reason, with an excerpt, for the report."""
    for reason in table.column("reason").unique().drop_null().to_pylist():
        known = samples.setdefault(reason, []) if reason != "filtering" else []
        if reason == "filtering" or len(known) >= SAMPLES_PER_REASON:
            continue
        rows = pc.indices_nonzero(pc.equal(table.column("reason"), reason))[: SAMPLES_PER_REASON - len(known)]
        some = columns.take(rows)
        for id, excerpt in zip(some.column("id").to_pylist(), some.column("excerpt").to_pylist(), strict=True):
            known.append({"id": id, "text": excerpt})
