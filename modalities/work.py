"""What a node's function is handed and what it hands back. A stage sees nothing else of plan and store.

    def run(work: Work[Section]) -> Result        # an instance that is not sharded
    def run_unit(work: Work[Section]) -> Result   # one unit of a sharded instance
    def gather(work: Work[Section]) -> Result     # all units of a sharded instance are there (optional)

The function writes its files into `work.folder` and returns counts and a content digest. The job runner then writes the
manifest and publishes the folder by one rename; a killed job leaves nothing that counts.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from modalities.manifest import Manifest, write_json

Section = TypeVar("Section")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Upstream:
    """A finished instance or unit that is read."""

    folder: Path
    manifest: Manifest
    units: tuple["Upstream", ...] = ()
    """The units of a sharded instance, in the order of its sources' files."""

    @property
    def content(self) -> str:
        """Digest of its logical contents."""
        return self.manifest.content


class Progress:
    """Says how far a job is, in a small file that `modalities run` and `status` read. Throttled to five writes a second."""

    def __init__(self, path: Path | None, label: str = "") -> None:
        self._path = path
        self._label = label
        self._started: float | None = None
        self._first = 0.0
        self._next = 0.0

    def update(self, done: float, total: float | None = None, unit: str = "documents", **extra: Any) -> None:
        """Report `done` of `total` `unit`s; `extra` is JSON that is shown as it is, such as loss.

        The first call says where the work starts: what was done before it, in an earlier process, is in no rate.
        """
        now = time.time()
        if self._started is None:
            self._started, self._first = now, done
        if self._path is None or now < self._next:
            return
        self._next = now + 0.2
        state = {"label": self._label, "done": done, "total": total, "unit": unit, "now": now}
        write_json(self._path, state | {"started": self._started, "first": self._first, "extra": extra})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Work(Generic[Section]):
    """One unit or instance to make."""

    node: str
    key: str
    label: str
    """What people call it, such as `filtering(help)`."""
    section: Section
    """The typed config section, numerics and runtime keys included."""
    inputs: Mapping[str, Upstream]
    """Role -> what is read. For a unit, a sharded role holds the unit that this one is aligned with."""
    folder: Path
    """An empty folder to write into. It becomes the unit or the instance."""
    unit: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the plan says of this unit; for ingestion: source, path, size, byte range."""
    own_units: tuple[Upstream, ...] = ()
    """In `gather`: the finished units of this instance, in plan order."""
    previous: tuple[Path, ...] = ()
    """Folders of earlier attempts at the same work, latest first: resumable nodes look for their state there."""
    state: Path | None = None
    """A folder that outlives attempts and is removed after publishing: resume checkpoints live here."""
    cache: Path
    """`results/store/.cache`: caches that are in no digest (vocabularies, compiled kernels). May be removed at any time."""
    progress: Progress = dataclasses.field(default_factory=lambda: Progress(None))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What came of the work. `content` must depend on the logical contents alone: not on time, path, host or file encoding."""

    content: str
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    numerics: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def digest_of(*parts: Any) -> str:
    """Return the digest (32 hexadecimal digits) of JSON data, numbers as Python writes them and keys sorted."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def sum_counts(units: Iterator[Manifest] | tuple[Manifest, ...]) -> tuple[dict[str, int], dict[str, int]]:
    """Add up counts and dropped documents over units."""
    counts: dict[str, int] = {}
    dropped: dict[str, int] = {}
    for unit in units:
        for total, part in ((counts, unit.counts), (dropped, unit.dropped)):
            for name, number in part.items():
                total[name] = total.get(name, 0) + number
    return counts, dropped
