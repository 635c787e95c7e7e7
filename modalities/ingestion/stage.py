"""Ingestion: from the files of a source to documents, every record accounted for.

A unit is a file or a range of one. It becomes `documents.parquet` and `rejects.parquet` (position, reason, excerpt). Where a
document starts and what its id is does not depend on how a file is cut. In `gather` the units of a source meet.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modalities.errors import InputError
from modalities.ingestion.config import Extraction, IngestionSection
from modalities.ingestion.duplicates import duplicate_ids
from modalities.ingestion.extraction import Extractor
from modalities.ingestion.inputs import check_unchanged
from modalities.ingestion.output import Output
from modalities.ingestion.records import BROKEN, CorruptError, Document, Meter, Reject, WrongKindError
from modalities.ingestion.streams import Input, check_kind
from modalities.ingestion.urls import UrlFilter
from modalities.work import Result, Work, sum_counts

_LISTED = 20


def run_unit(work: Work[IngestionSection]) -> Result:
    """Read one unit. Raises `InputError` for a changed, wrong or, by policy, damaged file."""
    unit, section, meter = work.unit, work.section, Meter()
    check_unchanged(unit, work.cache)
    damage: CorruptError | None = None
    with Output(work.folder, unit["name"]) as output, Extractor(section.extraction or Extraction()) as extractor:
        judge = _Judge(section, work.cache, extractor)
        try:
            for record in _records(work, meter):
                output.add(judge.decide(record))
                work.progress.update(meter.done_bytes, _size(unit), "bytes", documents=output.num_documents)
        except WrongKindError as error:
            raise InputError(f"{unit['path']}: expected {unit['format']}, got {error}") from None
        except CorruptError as error:
            damage = error
    if damage is not None:
        _check_damage(unit, section, damage, output.num_records)
    counts = {
        "documents_in": output.num_records,
        "documents_out": output.num_documents,
        "bytes_in": _size(unit) or meter.done_bytes,
        "text_bytes": output.text_bytes,
        "blank_lines": meter.blank_lines,
        "other_records": meter.other_records,
        "corrupt_files": int(damage is not None),
    }
    info = {
        "name": unit["name"],
        "format": unit["format"],
        "identity": unit["checksum_of"],
        "examples": output.examples,
        "damage": str(damage) if damage is not None else None,
    }
    if "start" not in unit and not _is_one_document(unit["format"], section):
        _check_broken(unit["path"], counts, output.dropped, section)
    return Result(content=output.content(), counts=counts, dropped=dict(output.dropped), info=info)


def gather(work: Work[IngestionSection]) -> Result:
    """Check what concerns whole files and the whole source: shares of broken records, ids that occur twice."""
    manifests = tuple(unit.manifest for unit in work.own_units)
    files: dict[str, list[Any]] = {}
    for manifest in manifests:
        files.setdefault(manifest.info["name"], []).append(manifest)
    for name, parts in files.items():
        if not _is_one_document(parts[0].info["format"], work.section):
            _check_broken(f"{work.label}: {name}", *sum_counts(tuple(parts)), work.section)
    counts, dropped = sum_counts(manifests)
    _check_broken(work.label, counts, dropped, work.section)
    repeated, listed = duplicate_ids([unit.folder / "documents.parquet" for unit in work.own_units], limit=_LISTED)
    if repeated and work.section.on_duplicate_id == "fail":
        raise InputError(
            f"{work.label}: expected ids that occur once, got {repeated} repeated documents, such as {listed[0]!r}; "
            "set the source's `id_key` to a field that is unique, or ingestion.on_duplicate_id: keep"
        )
    info = {
        "files": len(files),
        "identity": dict(Counter(parts[0].info["identity"] for parts in files.values())),
        "damaged": [f"{m.info['name']}: {m.info['damage']}" for m in manifests if m.info["damage"] is not None][
            :_LISTED
        ],
        "duplicate_ids": listed,
        "examples": _first_examples(manifests),
    }
    return Result(content="", counts=counts | {"duplicate_ids": repeated}, dropped=dropped, info=info)


def _records(work: Work[IngestionSection], meter: Meter) -> Iterator[Document | Reject]:
    """Yield the records of a unit, whatever its format."""
    unit, section = work.unit, work.section
    path, start, end = Path(unit["path"]), unit.get("start"), unit.get("end")
    check_kind(path, unit["format"])
    if unit["format"] == "parquet":
        from modalities.ingestion import parquet

        yield from parquet.read(path, section, meter, start=start, end=end)
        return
    # A range begins one byte early: a line that starts exactly at its first byte is told by the newline before it.
    skip = start is not None and start > 0
    with Input(path, start=start - 1 if start is not None and skip else 0) as stream:
        if unit["format"] == "warc":
            from modalities.ingestion import warc

            yield from warc.read(stream, section, meter)
        elif unit["format"] == "jsonl":
            from modalities.ingestion import jsonl

            yield from jsonl.read(stream, section, meter, end=end, skip_first=skip)
        else:
            from modalities.ingestion import text

            yield from text.read(stream, section, meter, end=end, skip_first=skip)


def _size(unit: Mapping[str, Any]) -> int | None:
    """Return the bytes on disk that a unit covers, or None for row groups."""
    if "start" not in unit:
        return int(unit["bytes"])
    return None if unit["format"] == "parquet" else int(unit["end"] - unit["start"])


class _Judge:
    """Decides what becomes of a record: a document with text, or a reject with a reason."""

    def __init__(self, section: IngestionSection, cache: Path, extractor: Extractor) -> None:
        self._section = section
        self._cache = cache
        self._extractor = extractor
        self._urls: UrlFilter | None = None

    def decide(self, record: Document | Reject) -> Document | Reject:
        """Apply address lists and extraction. Addresses come first, as in FineWeb, and save the extraction."""
        if isinstance(record, Reject):
            if record.reason == "corrupt" and self._section.on_corrupt == "fail":
                raise CorruptError(record.excerpt, position=record.position, lost_share=0.0)
            return record
        if not record.text or record.text.isspace():
            return Reject(position=record.position, reason="empty_text", excerpt=record.url or record.id or "")
        if self._section.url_filter and record.url:
            rule = self._rule(record.url)
            if rule is not None:
                return Reject(position=record.position, reason=f"blocked_url:{rule}", excerpt=record.url)
        if not record.html:
            return record
        outcome, text = self._extractor.extract(record.text)
        if outcome != "text":
            return Reject(
                position=record.position, reason=outcome, excerpt=f"{record.url or record.id or ''} {text}".strip()
            )
        record.text, record.html = text, False
        return record

    def _rule(self, url: str) -> str | None:
        if self._urls is None:
            self._urls = UrlFilter(self._cache)
        return self._urls.reason(url)


def _check_damage(unit: Mapping[str, Any], section: IngestionSection, damage: CorruptError, num_records: int) -> None:
    """Raise `InputError` for a damaged file, unless the policy is to keep what precedes the damage and little is lost."""
    what = f"{unit['path']}: expected a whole {unit['format']} file, got damage after {num_records} records: {damage}"
    if section.on_corrupt == "fail":
        raise InputError(
            f"{what}; replace the file, or set ingestion.on_corrupt: quarantine to keep what precedes the damage"
        )
    if damage.lost_share > section.corrupt_limit:
        raise InputError(
            f"{what}; {damage.lost_share:.0%} of it is lost: replace the file or raise ingestion.corrupt_limit "
            f"({section.corrupt_limit:g})"
        )


def _check_broken(path: str, counts: Mapping[str, int], dropped: Mapping[str, int], section: IngestionSection) -> None:
    """Raise `InputError` where too large a share of a file's records is broken: it is likely another kind of file."""
    broken = {reason: number for reason, number in dropped.items() if reason in BROKEN}
    total, limit = counts["documents_in"], section.corrupt_limit
    if total and sum(broken.values()) > limit * total:
        reasons = ", ".join(f"{reason} {number}" for reason, number in sorted(broken.items()))
        raise InputError(
            f"{path}: expected at most {limit:.0%} broken records, got {sum(broken.values())} of {total} ({reasons}); "
            "correct the source's format, text_key or file, or raise ingestion.corrupt_limit"
        )


def _is_one_document(form: str, section: IngestionSection) -> bool:
    """Tell whether a file is one record, so that a share of broken ones says something only over the whole source."""
    return form == "text" and section.documents == "file"


def _first_examples(manifests: tuple[Any, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for manifest in manifests:
        for reason, texts in manifest.info["examples"].items():
            room = 3 - len(found.setdefault(reason, []))
            found[reason].extend(f"{manifest.info['name']}: {text}" for text in texts[:room])
    return found
