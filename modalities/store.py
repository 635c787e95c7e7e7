"""The store: finished units and instances by digest, work in progress, and who may work on what.

    <root>/<node>/<digest>/                   an instance: its files and manifest.json
    <root>/<node>/units/<ab>/<key>/           a unit of a sharded node, likewise
    <root>/.work/<node>/<key>/                work in progress: lease-<n>/, attempt-<n>/, state/, progress.json, outcome.json
    <root>/.trash/                            what was replaced or forced; `modalities store gc` empties it
    <root>/.cache/                            caches that are in no digest

A folder is published by one rename to a path that must not exist, so a reader sees all of it or nothing. Exclusion is by
`lease-<n>`, made by one rename and owned by a process; an owner is dead only if Slurm or the host's process table says so,
never by clock. The highest n owns the work; it is checked again before a publish.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from modalities import manifest
from modalities.errors import StoreError
from modalities.manifest import Manifest


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """A store below one folder. Methods touch the disk and keep nothing in memory."""

    root: Path

    def folder(self, node: str, key: str, *, unit: bool = False) -> Path:
        """Return where an instance or unit is, or would be."""
        return self.root / node / "units" / key[:2] / key if unit else self.root / node / key

    def work(self, node: str, key: str) -> Path:
        """Return where work on an instance or unit is done."""
        return self.root / ".work" / node / key

    @property
    def cache(self) -> Path:
        """Return the folder of caches."""
        return self.root / ".cache"

    def find(self, node: str, key: str, *, unit: bool = False) -> Manifest | None:
        """Return the manifest if the instance or unit is there with all its files, and of their size; else None.

        For a sharded instance every unit must be there too.
        """
        folder = self.folder(node, key, unit=unit)
        try:
            found = manifest.read(folder)
        except StoreError:
            return None
        if any(_size(folder / name) != size for name, size in found.files.items()):
            return None
        units_there = all((self.folder(node, key, unit=True) / manifest.NAME).exists() for key in found.units)
        return found if units_there else None

    def publish(self, node: str, key: str, attempt: Path, *, unit: bool = False) -> Path:
        """Move a finished attempt to its place by one rename."""
        place = self.folder(node, key, unit=unit)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            raise StoreError(f"{place}: expected no such folder before publishing, found one; another job made it")
        attempt.rename(place)
        _sync_folder(place.parent)
        return place

    def discard(self, node: str, key: str, *, unit: bool = False) -> bool:
        """Move an instance or unit to the trash; say whether there was one."""
        return self._to_trash(self.folder(node, key, unit=unit), node)

    def finish_work(self, node: str, key: str) -> None:
        """Remove the work folder in one rename, then its contents."""
        trash = self.root / ".trash" / f"work-{uuid.uuid4().hex}"
        trash.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self.work(node, key).rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def _to_trash(self, folder: Path, node: str) -> bool:
        place = self.root / ".trash" / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}" / node
        place.mkdir(parents=True)
        try:
            folder.rename(place / folder.name)
        except FileNotFoundError:
            place.rmdir()
            place.parent.rmdir()
            return False
        return True

    def instances(self) -> Iterator[Manifest]:
        """Yield the manifests of all instances, by node and digest."""
        for node in sorted(p for p in self.root.glob("*") if p.is_dir() and not p.name.startswith(".")):
            for folder in sorted(p for p in node.iterdir() if p.name != "units"):
                with contextlib.suppress(StoreError):
                    yield manifest.read(folder)


def list_files(folder: Path) -> dict[str, int]:
    """Return relative path and size of every file below a folder, the manifest left out."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p != folder / manifest.NAME)
    return {p.relative_to(folder).as_posix(): p.stat().st_size for p in files}


def sync_tree(folder: Path) -> None:
    """Flush every file below a folder to disk, so that a manifest never outlives what it lists."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        elif path.is_dir():
            _sync_folder(path)
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


# --- leases ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on one unit or instance, as long as no higher number exists."""

    work: Path
    number: int

    @property
    def attempt(self) -> Path:
        """Folder of this attempt."""
        return self.work / f"attempt-{self.number}"

    @property
    def previous(self) -> tuple[Path, ...]:
        """Folders of earlier attempts, latest first."""
        numbers = sorted((n for n in _numbers(self.work, "attempt") if n < self.number), reverse=True)
        return tuple(self.work / f"attempt-{n}" for n in numbers)

    def check(self) -> None:
        """Raise `StoreError` if somebody else has taken over."""
        newest = max(_numbers(self.work, "lease"), default=-1)
        if newest != self.number:
            raise StoreError(
                f"{self.work}: lease {self.number} was taken over by {newest}; this job stops without publishing"
            )

    def release(self) -> None:
        """Give the lease up; finished state stays for a successor."""
        with contextlib.suppress(OSError):
            (self.work / f"lease-{self.number}").rename(self.work / f"released-{self.number}")


def take_lease(work: Path) -> Lease | dict[str, Any]:
    """Return a lease on a work folder, or the live owner who holds it."""
    while True:
        work.mkdir(parents=True, exist_ok=True)
        held = max(_numbers(work, "lease"), default=0)
        if held:
            owner = _read_owner(work / f"lease-{held}")
            if owner is not None and is_alive(owner):
                return owner
        leases = _numbers(work, "lease")
        if max(leases, default=0) != held:
            continue
        number = 1 + max([held, *_numbers(work, "attempt"), *_numbers(work, "released")])
        draft = work / f"draft-{uuid.uuid4().hex}"
        try:
            draft.mkdir()
            (draft / "owner.json").write_text(json.dumps(me()), encoding="utf-8")
            draft.rename(work / f"lease-{number}")
        except OSError:  # somebody else was faster, or the work was finished and removed meanwhile
            shutil.rmtree(draft, ignore_errors=True)
            continue
        return Lease(work, number)


def me() -> dict[str, Any]:
    """Describe this process so that others can tell whether it still lives."""
    own = psutil.Process()
    job = os.environ.get("SLURM_JOB_ID")
    return {
        "host": socket.gethostname(),
        "boot": _boot(),
        "pid": own.pid,
        "started": own.create_time(),
        "slurm_job": job,
    }


def is_alive(owner: dict[str, Any]) -> bool:
    """Say whether an owner may still be working. Unknown counts as alive."""
    if owner["host"] == socket.gethostname():
        if owner["boot"] != _boot():
            return False
        try:
            process = psutil.Process(owner["pid"])
            return abs(process.create_time() - owner["started"]) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True
    if owner["slurm_job"] and owner["slurm_job"] == os.environ.get("SLURM_JOB_ID"):
        return False  # this job, requeued on another node: its earlier run has ended
    return _slurm_job_lives(owner["slurm_job"]) if owner["slurm_job"] else True


def _slurm_job_lives(job: str) -> bool:
    try:
        answer = subprocess.run(
            ["squeue", "-h", "-j", job, "-o", "%T"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    if answer.returncode != 0:
        return "Invalid job id" not in answer.stderr
    return bool(answer.stdout.strip())


def _boot() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="ascii").strip() if path.exists() else str(int(psutil.boot_time()))


def _read_owner(lease: Path) -> dict[str, Any] | None:
    try:
        owner: dict[str, Any] = json.loads((lease / "owner.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return owner


def _numbers(work: Path, kind: str) -> list[int]:
    found = []
    for path in work.glob(f"{kind}-*"):
        tail = path.name.removeprefix(f"{kind}-")
        if tail.isdigit():
            found.append(int(tail))
    return found
