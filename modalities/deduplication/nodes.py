"""The documents that take part in clusters, as numbered nodes: held-out ones first, then unit by unit."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from modalities.deduplication import signatures
from modalities.deduplication.config import ClustersSection
from modalities.deduplication.kernels import I32, I64
from modalities.deduplication.unions import KeyFiles
from modalities.deduplication.words import splitter
from modalities.documents import GroupReader
from modalities.work import Upstream


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """The held-out documents."""

    rows: Mapping[str, Mapping[int, int]]
    """Ingestion unit key -> row -> number of the held-out document."""
    sources: tuple[str, ...]
    ids: tuple[str, ...]
    texts: pa.Array


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The documents of one unit that take part. Its nodes are `first` to `first + len(rows)`."""

    source: str
    unit: str
    upstream: Upstream
    first: int
    rows: I32
    held_at: I64
    """Which of its documents are themselves held out: positions in `rows`, ascending."""
    held_number: I64
    """Numbers of these held-out documents."""
    contaminated: I64
    """Rows that leave because they contain evaluation items; they are no nodes."""


def read_heldout(heldout: Upstream) -> HeldOut:
    """Read all held-out documents; they are few."""
    reader = GroupReader(heldout.folder / "documents.parquet")
    rows: dict[str, dict[int, int]] = {}
    sources: list[str] = []
    ids: list[str] = []
    texts: list[pa.Array] = []
    for table in reader.groups(["source", "unit", "row", "id", "text"]):
        places = zip(table.column("unit").to_pylist(), table.column("row").to_pylist(), strict=True)
        for number, (unit, row) in enumerate(places, start=len(ids)):
            rows.setdefault(unit, {})[row] = number
        ids += table.column("id").to_pylist()
        sources += table.column("source").to_pylist()
        texts += table.column("text").cast(pa.large_string()).chunks
    return HeldOut(
        rows=rows,
        sources=tuple(sources),
        ids=tuple(ids),
        texts=pa.chunked_array(texts, pa.large_string()).combine_chunks(),
    )


def add_heldout(
    keys: KeyFiles,
    heldout: HeldOut,
    *,
    section: ClustersSection,
    languages: set[str | None],
    cache: Path,
) -> None:
    """Add the held-out documents, once for each language, since words depend on it."""
    if not len(heldout.texts):
        return
    for language in sorted(languages, key=lambda code: code or ""):
        high, low = signatures.text_hashes(heldout.texts)
        columns = {"text_high": high, "text_low": low}
        if keys.bands:
            split, parameters = splitter(language, cache=cache), signatures.parameters(section)
            columns["bands"] = pa.chunked_array(
                [
                    signatures.bands(split.split(part), minhash_parameters=parameters)
                    for part in signatures.batches(heldout.texts)
                ]
            )
        _add(keys, pa.table(columns))


def add_unit(keys: KeyFiles, unit: Upstream, *, source: str, section: ClustersSection, heldout: HeldOut) -> Part:
    """Add the documents of a unit that take part."""
    first, row = keys.num_nodes, 0
    names = ["text_high", "text_low", "contaminated", *(["bands"] if keys.bands else [])]
    rows, contaminated = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
    for table in GroupReader(unit.folder / signatures.FILE).groups(names):
        takes_part = table.column("text_high").is_valid().to_numpy()
        if section.remove_contaminated:
            dirty = table.column("contaminated").is_valid().to_numpy()
            contaminated.append(row + np.flatnonzero(dirty))
            takes_part &= ~dirty
        rows.append((row + np.flatnonzero(takes_part)).astype(np.int32))
        _add(keys, table.filter(pa.array(takes_part)))
        row += table.num_rows
    all_rows = np.concatenate(rows)
    key = unit.manifest.upstream["ingestion"]["key"]
    numbers = heldout.rows.get(key, {})
    held_at = np.flatnonzero(np.isin(all_rows, list(numbers)))
    return Part(
        source=source,
        unit=key,
        upstream=unit,
        first=first,
        rows=all_rows,
        held_at=held_at,
        held_number=np.array([numbers[row] for row in all_rows[held_at].tolist()], np.int64),
        contaminated=np.concatenate(contaminated),
    )


def _add(keys: KeyFiles, table: pa.Table) -> None:
    """Append the rows of a table, of which none lacks a text hash."""
    texts = np.stack([table.column(name).to_numpy() for name in ("text_high", "text_low")], axis=1)
    signed, bands = np.zeros(table.num_rows, np.bool_), np.empty((0, 0, 2), np.uint64)
    if keys.bands:
        signed, bands = signatures.band_keys(table.column("bands"), buckets=len(keys.bands))
    keys.add(texts, signed=signed, bands=bands)
