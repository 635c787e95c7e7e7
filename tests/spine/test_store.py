"""Leases exclude, dead owners are succeeded, publishing is one rename."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from modalities import manifest, store
from modalities.errors import StoreError
from modalities.manifest import Manifest
from modalities.store import Lease, Store, take_lease


def made(**fields: object) -> Manifest:
    base = {"node": "n", "key": "k", "label": "n", "version": 1, "section": {}, "upstream": {}, "content": "c"}
    return Manifest(**(base | fields))  # type: ignore[arg-type]


def test_a_published_folder_is_found_only_with_all_its_files(tmp_path: Path) -> None:
    kept = Store(tmp_path)
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    (attempt / "a.bin").write_bytes(b"12345")
    manifest.write(attempt, made(files=store.list_files(attempt)))
    kept.publish("n", "k", attempt)
    found = kept.find("n", "k")
    assert found is not None
    assert found.files == {"a.bin": 5}
    (kept.folder("n", "k") / "a.bin").write_bytes(b"1234")
    assert kept.find("n", "k") is None


def test_publishing_twice_is_refused_and_discarding_makes_room(tmp_path: Path) -> None:
    kept = Store(tmp_path)
    for number in range(2):
        attempt = tmp_path / f"attempt{number}"
        attempt.mkdir()
        manifest.write(attempt, made())
    kept.publish("n", "k", tmp_path / "attempt0")
    with pytest.raises(StoreError, match="expected no such folder"):
        kept.publish("n", "k", tmp_path / "attempt1")
    assert kept.discard("n", "k")
    assert not kept.discard("n", "k")
    kept.publish("n", "k", tmp_path / "attempt1")


def test_a_live_owner_excludes_and_a_released_lease_is_succeeded(tmp_path: Path) -> None:
    first = take_lease(tmp_path / "w")
    assert isinstance(first, Lease)
    second = take_lease(tmp_path / "w")
    assert isinstance(second, dict)
    assert second["pid"] == os.getpid()
    first.attempt.mkdir()
    first.release()
    third = take_lease(tmp_path / "w")
    assert isinstance(third, Lease)
    assert third.number == 2
    assert third.previous == (tmp_path / "w" / "attempt-1",)
    third.check()


def test_a_killed_owner_is_succeeded_and_cannot_publish(tmp_path: Path) -> None:
    code = "import sys, time; from modalities.store import take_lease; from pathlib import Path\n"
    code += "take_lease(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "w")], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    assert isinstance(take_lease(tmp_path / "w"), dict)
    child.send_signal(signal.SIGKILL)
    child.wait()
    successor = take_lease(tmp_path / "w")
    assert isinstance(successor, Lease)
    with pytest.raises(StoreError, match="taken over by 2"):
        Lease(tmp_path / "w", 1).check()


def test_an_owner_of_an_earlier_boot_or_a_reused_pid_is_dead() -> None:
    own = store.me()
    assert store.is_alive(own)
    assert not store.is_alive(own | {"boot": "another"})
    assert not store.is_alive(own | {"started": own["started"] - 1000})
    assert store.is_alive(own | {"host": "elsewhere", "slurm_job": None}), "unknown counts as alive"


def _contend(work: str, start: Any, end: Any, answers: "multiprocessing.Queue[int]") -> None:
    start.wait(60)
    lease = take_lease(Path(work))
    answers.put(lease.number if isinstance(lease, Lease) else 0)
    end.wait(60)


def test_of_many_contenders_one_wins(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[int] = context.Queue()
    start, end = context.Event(), context.Event()
    workers = [context.Process(target=_contend, args=(str(tmp_path / "w"), start, end, answers)) for _ in range(12)]
    for worker in workers:
        worker.start()
    start.set()
    numbers = [answers.get(timeout=60) for _ in workers]
    end.set()
    for worker in workers:
        worker.join()
    assert sorted(numbers) == [0] * 11 + [1]


def test_manifests_refuse_counts_that_do_not_add_up() -> None:
    made(counts={"documents_in": 5, "documents_out": 3}, dropped={"short": 2}).check_counts()
    with pytest.raises(StoreError, match="5 != 3 \\+ 1"):
        made(counts={"documents_in": 5, "documents_out": 3}, dropped={"short": 1}).check_counts()


def test_a_damaged_manifest_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match=r"manifest\.json: not valid JSON"):
        manifest.read(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(StoreError, match="expected manifest format 1, got 99"):
        manifest.read(tmp_path)
