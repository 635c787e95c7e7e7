"""Held-out documents: drawn right after ingestion, before any filter, by a rule that no arm of a study changes.

The documents of a source are taken in the order of a keyed hash of their identity, so that another input file moves few of
them, until there are enough that are clean: of a sane length, in the source's language, mostly letters, and not seen
before. Two passes: identities first, then the texts of candidates only, a row group at a time.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from modalities.documents import GroupReader, GroupWriter
from modalities.errors import InputError
from modalities.filtering import language, scores
from modalities.filtering.config import HeldoutConfig, HeldoutSection
from modalities.work import Result, Upstream, Work

SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("unit", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("language", pa.string()),
        pa.field("text_bytes", pa.int64(), nullable=False),
    ]
)
"""Sorted by source, unit (key of the ingestion unit) and row. `language`: as lid.176 has it."""

LANGUAGE_THRESHOLD = 0.65
MIN_LETTERS_RATIO = 0.6
"""Smallest share of letters among the characters that are not white space: keeps tables and markup out."""
_ROLE = "ingestion:"
_CANDIDATES = 4
"""Texts read at once per document wanted."""
_POOL = 64
"""Places kept in memory per document wanted, before the identities are gone through once more for more of them."""
_PLACE = np.dtype([("order", np.uint64), ("rank", np.int64), ("row", np.int64)])


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A document that may be held out, and where it stands."""

    unit: int
    row: int
    id: str
    text: str
    language: str
    score: float


def run(work: Work[HeldoutSection]) -> Result:
    """Write `documents.parquet`: the held-out documents of all sources."""
    settings = work.section.settings
    total, dropped, info = 0, {"not_drawn": 0}, {}
    written_bytes = 0
    seen: set[bytes] = set()
    with GroupWriter(work.folder / "documents.parquet", SCHEMA) as writer:
        for source in sorted(work.section.languages):
            upstream = work.inputs[f"{_ROLE}{source}"]
            num_documents = sum(GroupReader(unit.folder / "documents.parquet").num_rows for unit in upstream.units)
            label = work.section.languages[source]
            kept, rejected = _draw(upstream, num_documents, settings, label=label, seen=seen, cache=work.cache)
            if not kept:
                raise InputError(_nothing(source, num_documents, rejected, settings))
            total += num_documents
            for reason, number in rejected.items():
                dropped[reason] = dropped.get(reason, 0) + number
            dropped["not_drawn"] += num_documents - len(kept) - sum(rejected.values())
            table = _table(source, upstream, kept)
            writer.write(table)
            size = int(np.sum(table.column("text_bytes").to_numpy()))
            written_bytes += size
            info[source] = {"documents": len(kept), "bytes": size, "too_small": len(kept) < settings.documents}
            work.progress.update(writer.num_rows, settings.documents * len(work.section.languages))
    dropped = {reason: number for reason, number in dropped.items() if number > 0}
    counts = {"documents_in": total, "documents_out": writer.num_rows, "text_bytes": written_bytes}
    return Result(content=writer.content(), counts=counts, dropped=dropped, info={"sources": info})


def _draw(
    upstream: Upstream, num_documents: int, settings: HeldoutConfig, *, label: str | None, seen: set[bytes], cache: Path
) -> tuple[list[Document], dict[str, int]]:
    """Take clean documents in order until there are enough. `seen` holds hashes of the texts of all sources so far."""
    wanted = min(settings.documents, int(settings.max_share * num_documents))
    kept: list[Document] = []
    rejected: dict[str, int] = {}
    start, pool = 0, _POOL * wanted
    while len(kept) < wanted and start < num_documents:
        places = _smallest(upstream, settings.seed, pool)
        while len(kept) < wanted and start < len(places):
            batch = places[start : start + _CANDIDATES * wanted]
            for document in _read(upstream, batch, cache=cache):
                start += 1
                reason = _fault(document, settings, label, seen)
                if reason is None:
                    kept.append(document)
                else:
                    rejected[reason] = rejected.get(reason, 0) + 1
                if len(kept) == wanted:
                    break
        pool *= 16
    return kept, rejected


def _smallest(upstream: Upstream, seed: int, count: int) -> list[tuple[int, int]]:
    """Return (unit, row) of the `count` documents that come first in the order of the keyed hash; ties by key and row."""
    key = seed & 0xFFFFFFFFFFFFFFFF
    best = np.zeros(0, _PLACE)
    units = sorted(range(len(upstream.units)), key=lambda unit: upstream.units[unit].manifest.key)
    for rank, unit in enumerate(units):
        row = 0
        for group in GroupReader(upstream.units[unit].folder / "documents.parquet").groups(["id"]):
            part = np.zeros(group.num_rows, _PLACE)
            ids = group.column("id").to_pylist()
            part["order"] = [xxhash.xxh3_64_intdigest(identity.encode("utf-8"), key) for identity in ids]
            part["rank"], part["row"] = rank, np.arange(row, row + group.num_rows)
            row += group.num_rows
            best = np.sort(np.concatenate([best, part]), order=("order", "rank", "row"))[:count]
    return [(units[rank], row) for _, rank, row in best.tolist()]


def _read(upstream: Upstream, batch: list[tuple[int, int]], *, cache: Path) -> Iterator[Document]:
    """Yield documents in the order of `batch`, reading each row group at most once."""
    found: dict[tuple[int, int], Document] = {}
    for unit in sorted({unit for unit, _ in batch}):
        rows = np.array(sorted(row for other, row in batch if other == unit))
        reader = GroupReader(upstream.units[unit].folder / "documents.parquet")
        first = 0
        for index in range(reader.num_groups):
            size = reader.group(index, ["position"]).num_rows
            inside = rows[(rows >= first) & (rows < first + size)]
            if len(inside):
                part = reader.group(index, ["id", "text"]).take(pa.array(inside - first))
                found |= {(unit, one.row): one for one in _identified(part, unit, inside.tolist(), cache)}
            first += size
    for place in batch:
        yield found[place]


def _identified(part: pa.Table, unit: int, rows: list[int], cache: Path) -> list[Document]:
    texts = pa.concat_arrays(part.column("text").cast(pa.large_string()).chunks)
    labels, values = language.identify(*scores.buffers(texts), kernels_folder=cache / "numba")
    columns = zip(rows, part.column("id").to_pylist(), texts.to_pylist(), labels, values.tolist(), strict=True)
    return [
        Document(unit=unit, row=row, id=key, text=text, language=label, score=score)
        for row, key, text, label, score in columns
    ]


def _fault(document: Document, settings: HeldoutConfig, label: str | None, seen: set[bytes]) -> str | None:
    """Return why a document is not taken. The rule is fixed on purpose: held-out text must not follow an ablation."""
    text = document.text
    solid = "".join(text.split())
    foreign = label is not None and (document.language != label or document.score <= LANGUAGE_THRESHOLD)
    tests = {
        "empty": not solid,
        "too_short": len(text) < settings.min_characters,
        "too_long": len(text) > settings.max_characters,
        "language": foreign,
        "few_letters": sum(map(str.isalpha, solid)) < MIN_LETTERS_RATIO * len(solid),
    }
    for reason, failed in tests.items():
        if failed:
            return reason
    digest = xxhash.xxh3_128_digest(text.encode("utf-8"))
    if digest in seen:
        return "duplicate"
    seen.add(digest)
    return None


def _table(source: str, upstream: Upstream, kept: list[Document]) -> pa.Table:
    keys = [unit.manifest.key for unit in upstream.units]
    kept = sorted(kept, key=lambda document: (keys[document.unit], document.row))
    return pa.table(
        {
            "source": [source] * len(kept),
            "unit": [keys[document.unit] for document in kept],
            "row": [document.row for document in kept],
            "id": [document.id for document in kept],
            "text": pa.array([document.text for document in kept], pa.large_string()),
            "language": [document.language for document in kept],
            "text_bytes": [len(document.text.encode("utf-8")) for document in kept],
        }
    )


def _nothing(source: str, num_documents: int, rejected: dict[str, int], settings: HeldoutConfig) -> str:
    if int(settings.max_share * num_documents) == 0:
        return (
            f"source {source!r}: expected at least {int(1 / settings.max_share) + 1} documents, so that heldout.max_share = "
            f"{settings.max_share} leaves one to hold out, got {num_documents}; raise heldout.max_share or add documents"
        )
    why = ", ".join(f"{reason}: {number}" for reason, number in sorted(rejected.items()))
    return (
        f"source {source!r}: expected a document of {settings.min_characters} to {settings.max_characters} characters in the "
        f"source's language to hold out, got none of {num_documents} ({why}); check its language, or heldout.min_characters"
    )
