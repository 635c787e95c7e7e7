"""Whole runs on a real Slurm of four nodes, through profiles/slurm."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slurm
SHORT_JOBS = "pretraining={numerics: {world_size: 2}, runtime: {nodes: 2, stop_after_seconds: 2}}"


def wait_for(found: Callable[[], Any], seconds: float) -> Any:
    """Return the first true value of `found()`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        time.sleep(0.2)
    raise AssertionError(f"nothing found in {seconds} s")


def test_tiny_whole_on_two_nodes_ends_with_the_bytes_of_a_local_run(
    slurm: dict[str, str], new_project: Any, local_run: Any
) -> None:
    """Each training job stops after 2 s, saves, and goes back into the queue under its own id: one head, one try each."""
    project = new_project(slurm)
    done = project.call(*project.command("--retries", "0", "--config", SHORT_JOBS))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert project.weights() == local_run.weights()
    assert project.contents() == local_run.contents()
    jobs = project.jobs()
    trained = [job for job in jobs if "pretraining" in job["comment"]]
    assert len(trained) == 2, "one job per segment, however often it was queued"
    assert sum(project.restarts(job["id"]) for job in trained) >= 1
    assert {job["nodes"] for job in trained} == {"2"}
    assert {job["nodes"] for job in jobs if job not in trained} == {"1"}
    assert {job["state"] for job in jobs} == {"COMPLETED"}
    assert (project.path / "results/runs/tiny/report.html").stat().st_size > 10_000


def test_a_killed_head_is_no_reason_to_train_twice(slurm: dict[str, str], new_project: Any, local_run: Any) -> None:
    """kill -9 of Snakemake while a two-node training runs: the next start waits for the live job and adopts its work."""
    project = untrained(new_project, slurm, local_run)
    slow = ("--config", "pretraining={numerics: {world_size: 2}, runtime: {nodes: 2, checkpoint_every_steps: 1}}")
    work = project.path / "results/store/.work/pretraining"
    head = project.start(*slow)
    wait_for(lambda: list(work.glob("*/state/progress")), 240)
    os.killpg(head.pid, signal.SIGKILL)
    head.wait()
    done = project.call(*project.command(*slow))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert project.weights() == local_run.weights()
    trained = [m for name, m in project.manifests().items() if name.startswith("pretraining(")]
    assert [m["provenance"]["attempt"] for m in trained] == [1, 1], "the first job's work was used"


def untrained(new_project: Any, slurm: dict[str, str], local_run: Any) -> Any:
    """Return a copy of the local run in which training and what follows are missing."""
    project = new_project(slurm, local_run)
    for node in ("pretraining", "conversion", "evaluation", "reporting"):
        for folder in (project.path / "results/store" / node).glob("*"):
            folder.rename(project.path / f"gone-{node}-{folder.name}")
    return project
