"""Which files a source has, what they hold, and how they are cut into units.

A unit is a JSON object; everything in it but `path` is its identity:

    {"path": "/data/a/x.jsonl", "name": "a/x.jsonl", "format": "jsonl", "bytes": 700000000,
     "checksum": "xxh3_128:...", "checksum_of": "content", "start": 256000000, "end": 512000000}

`name` is relative to the folder that all globs of the source have in common. `start` and `end` are there when a file is read as
several units: bytes of a plain file (a line belongs to the range in which it starts) or row groups of a Parquet file.

Cost: a file is read once, then remembered by path, size, modification time and inode; 1,000 known files take under 50 ms.
"""

import dataclasses
import glob
import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modalities.errors import InputError
from modalities.ingestion.config import COMPRESSIONS, SUFFIXES, IngestionConfig, Source, format_of
from modalities.manifest import write_text

FULL_HASH_BYTES = 1 << 30
"""Larger files are known by size, name, and their first and last MiB: reading terabytes to make a plan is out of the question."""
_EDGE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 22
_SETTLED_SECONDS = 0.1
"""A file changed less than this before it was read is not remembered: clocks of file systems are coarse."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def units(config: IngestionConfig, source: str, root: Path, cache: Path) -> list[dict[str, Any]]:
    """Return the units of a source in the order of their names and ranges.

    Raises `InputError` naming `ingestion.sources.<source>.paths` for a glob without a match, a folder, an unreadable file.
    """
    where = f"ingestion.sources.{source}.paths"
    chosen = config.sources[source]
    with _Memory(cache) as memory:
        found: list[dict[str, Any]] = []
        for name, path in _files(chosen, root, where):
            found.extend(
                _units_of(path, name=name, source=chosen, max_bytes=config.max_unit_bytes, memory=memory, where=where)
            )
    return found


def check_unchanged(unit: Mapping[str, Any], cache: Path) -> None:
    """Raise `InputError` unless the unit's file is still what it was when the plan was made."""
    path = Path(unit["path"])
    try:
        with _Memory(cache) as memory:
            known = memory.look_up(path, str(unit["name"]))
    except OSError as error:
        raise InputError(
            f"{path}: expected a readable file, got {error.strerror}; restore it or make a new plan"
        ) from None
    got = {"bytes": known.size, "checksum": known.checksum}
    planned = {name: unit[name] for name in got}
    if got != planned:
        raise InputError(
            f"{path}: expected {planned} as planned, got {got}: the file has changed since; start the run again"
        )


def _files(source: Source, root: Path, where: str) -> list[tuple[str, Path]]:
    """Return names and paths of all files, each once, sorted by name."""
    paths: dict[str, None] = {}
    folders = []
    for pattern in source.paths:
        absolute = os.path.abspath(root / pattern)  # noqa: PTH100  (resolve() would follow links, and names with them)
        folders.append(_fixed_folder(absolute))
        matched = _match(absolute, f"{where}: {pattern!r}")
        paths.update(dict.fromkeys(matched))
    parent = os.path.commonpath(folders)
    return sorted((Path(path).relative_to(parent).as_posix(), Path(path)) for path in paths)


def _fixed_folder(pattern: str) -> str:
    """Return the folder before the first wildcard. It does not depend on what is there: one more file renames no other."""
    if os.path.lexists(pattern):
        return os.path.dirname(pattern)  # noqa: PTH120
    parts = Path(pattern).parts
    first = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return str(Path(*parts[: min(first, len(parts) - 1)]))


def _match(pattern: str, where: str) -> list[str]:
    if Path(pattern).is_dir():
        raise InputError(
            f"{where}: expected files, got a folder; write {Path(pattern).name}/* or {Path(pattern).name}/**/*"
        )
    if os.path.lexists(pattern):
        return [pattern]
    if not glob.has_magic(pattern):
        raise InputError(f"{where}: expected a file, got nothing at {pattern}; correct the path")
    found = [path for path in glob.iglob(pattern, recursive=True) if not os.path.isdir(path)]  # noqa: PTH112, PTH207
    if not found:
        raise InputError(f"{where}: expected at least one file, got none that matches {pattern}; correct the glob")
    return found


def _units_of(
    path: Path, *, name: str, source: Source, max_bytes: int, memory: "_Memory", where: str
) -> Iterator[dict[str, Any]]:
    form = source.format if source.format != "auto" else format_of(name)
    if form is None:
        known = ", ".join(SUFFIXES)
        raise InputError(
            f"{where}: {path}: expected a name ending in {known} (or these with {', '.join(COMPRESSIONS)}), got {path.name}; "
            "rename it or give the source a `format`"
        )
    try:
        entry = memory.look_up(path, name)
        unit = {"path": str(path), "name": name, "format": form, "bytes": entry.size}
        unit |= {"checksum": entry.checksum, "checksum_of": entry.checksum_of}
        ranges = _ranges(path, form, source, max_bytes, entry)
    except OSError as error:
        raise InputError(f"{where}: {path}: expected a readable file, got {error.strerror or error}") from None
    if len(ranges) < 2:
        yield unit
    for start, end in ranges if len(ranges) > 1 else []:
        yield unit | {"start": start, "end": end}


def _ranges(path: Path, form: str, source: Source, max_bytes: int, entry: "_Entry") -> list[tuple[int, int]]:
    if entry.size <= max_bytes:
        return []
    if form == "parquet":
        if entry.groups is None:
            entry.groups = _row_group_bytes(path)
        return _group_ranges(entry.groups, max_bytes)
    if form == "warc" or (form == "text" and source.documents == "file") or entry.compressed:
        return []
    count = -(-entry.size // max_bytes)
    bounds = [entry.size * i // count for i in range(count + 1)]
    return list(itertools.pairwise(bounds))


def _group_ranges(sizes: list[int], max_bytes: int) -> list[tuple[int, int]]:
    ranges, first, total = [], 0, 0
    for index, size in enumerate(sizes):
        if index > first and total + size > max_bytes:
            ranges.append((first, index))
            first, total = index, 0
        total += size
    return [*ranges, (first, len(sizes))]


def _row_group_bytes(path: Path) -> list[int]:
    """Return the compressed size of every row group; none for a damaged file, whose job then says what is wrong with it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return []
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    return [sum(g.column(c).total_compressed_size for c in range(g.num_columns)) for g in groups]


@dataclasses.dataclass(kw_only=True, slots=True)
class _Entry:
    size: int
    checksum: str
    checksum_of: str
    compressed: bool
    groups: list[int] | None = None


class _Memory:
    """Checksums of files that were read before, in one JSON file. Losing it, or a race for it, costs time only."""

    def __init__(self, cache: Path) -> None:
        self._path = cache / "input-checksums.json"
        self._known: dict[str, Any] = {}
        self._used: dict[str, tuple[list[int], _Entry]] = {}

    def __enter__(self) -> "_Memory":
        self._known = self._load()
        return self

    def __exit__(self, *_: object) -> None:
        new = {p: [*stamp, dataclasses.asdict(entry)] for p, (stamp, entry) in self._used.items()}
        new = {path: row for path, row in new.items() if self._known.get(path) != row}
        if new:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._path, json.dumps(self._load() | new))

    def _load(self) -> dict[str, Any]:
        try:
            known = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def look_up(self, path: Path, name: str) -> _Entry:
        """Return what is known of a file, reading it if it is new or has changed."""
        stat = path.stat()
        stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        row = self._known.get(str(path))
        # The checksum of a large file covers its name, and one file may have two names in two sources: it is made anew.
        if row is not None and row[:3] == stamp and row[3]["checksum_of"] == "content":
            entry = _Entry(**row[3])
            self._used[str(path)] = (stamp, entry)
            return entry
        now = time.time()
        checksum, checksum_of = _checksum(path, name, stat.st_size)
        with path.open("rb") as file:
            head = file.read(4)
        compressed = head.startswith((_GZIP, _ZSTD))
        entry = _Entry(size=stat.st_size, checksum=checksum, checksum_of=checksum_of, compressed=compressed)
        if now - stat.st_mtime > _SETTLED_SECONDS:
            self._used[str(path)] = (stamp, entry)
        return entry


def _checksum(path: Path, name: str, size: int) -> tuple[str, str]:
    import xxhash

    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        if size > FULL_HASH_BYTES:
            digest.update(f"{size}:{name}:".encode())
            digest.update(file.read(_EDGE_BYTES))
            file.seek(-_EDGE_BYTES, os.SEEK_END)
            digest.update(file.read(_EDGE_BYTES))
            return f"xxh3_128:{digest.hexdigest()}", "size, name, first and last MiB"
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return f"xxh3_128:{digest.hexdigest()}", "content"
