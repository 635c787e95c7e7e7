"""A real Slurm of four nodes on this machine, and projects that run on it."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLURM_UP = Path(__file__).with_name("slurm-up")
PARTS = ("config", "workflow", "rules", "profiles", "environment.yml", "tests/data")
QUICK = (
    "--slurm-init-seconds-before-status-checks",
    "2",
    "--seconds-between-status-checks",
    "2",
    "--latency-wait",
    "15",
)
LIGHT = "local: [ingestion, heldout, filtering, deduplication, tokenization.heldout, packing, evaluation.baselines, reporting]"


def _start(environment: Mapping[str, str]) -> str | None:
    """Start Slurm; return why it did not."""
    if shutil.which("slurmctld") is None:
        if os.environ.get("CI") != "true" or os.geteuid() != 0:
            return f"Slurm is not installed; as root on Debian: {SLURM_UP.relative_to(ROOT)} install"
        installed = subprocess.run([SLURM_UP, "install"], capture_output=True, text=True, timeout=600, check=False)
        if installed.returncode != 0:
            return f"slurm-up install: {installed.stderr[-2000:]}"
    for _ in range(2):
        done = subprocess.run(
            [SLURM_UP, "start"], env=dict(environment), capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode == 0:
            return None
    return f"slurm-up start: {done.stderr[-2000:]}"


@pytest.fixture(scope="session")
def slurm() -> Iterator[dict[str, str]]:
    """A running Slurm with accounting; the environment that finds it. Skips on a laptop without Slurm, fails in CI.

    One that slurm-up started before is used, and left running.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "MODALITIES_"))}
    ping = (
        shutil.which("scontrol") is not None
        and subprocess.run(["scontrol", "ping"], env=environment, capture_output=True, check=False).returncode == 0
    )
    problem = _start(environment)
    if problem is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)
    yield environment
    if not ping:
        subprocess.run([SLURM_UP, "stop"], env=environment, capture_output=True, timeout=120, check=False)


@dataclasses.dataclass(frozen=True)
class Project:
    """A copy of what a run needs, with a profile for the Slurm of these tests."""

    path: Path
    base: Mapping[str, str]

    def environment(self) -> dict[str, str]:
        return {**self.base, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)}

    def call(self, *command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run a module of this environment, such as `snakemake ...`."""
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.path,
            env=self.environment() | environment,
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs config/tiny.yaml on Slurm."""
        return [
            "snakemake",
            "--configfile",
            "config/tiny.yaml",
            "--workflow-profile",
            "profiles/slurm",
            *QUICK,
            *arguments,
        ]

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start the run on Slurm in a process group of its own."""
        with (self.path / f"head-{time.time_ns()}.log").open("wb") as log:
            command = [sys.executable, "-m", *self.command(*arguments)]
            return subprocess.Popen(
                command, cwd=self.path, env=self.environment(), stdout=log, stderr=log, start_new_session=True
            )

    def ask(self, *command: str) -> str:
        """Return what a Slurm command prints."""
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.strip()

    def jobs(self) -> list[dict[str, str]]:
        """Return what accounting knows of the jobs of this project: id, nodes, state, and the comment that names the rule."""
        shown = self.ask("sacct", "-X", "-n", "-P", "-o", "JobID,NNodes,State,Comment,WorkDir")
        names = ("id", "nodes", "state", "comment", "folder")
        found = [dict(zip(names, line.split("|"), strict=True)) for line in shown.splitlines()]
        return [job for job in found if job["folder"] == str(self.path)]

    def restarts(self, job: str) -> int:
        """Return how often Slurm started a job again."""
        return len(self.ask("sacct", "-D", "-X", "-n", "-P", "-j", job, "-o", "State").splitlines()) - 1

    def manifests(self) -> dict[str, dict[str, Any]]:
        """Return the manifests of all instances, by label."""
        paths = (
            p for p in (self.path / "results/store").glob("[!.]*/*/manifest.json") if p.parent.parent.name != "units"
        )
        found = (json.loads(p.read_text()) for p in paths)
        return {m["label"]: m for m in found}

    def contents(self) -> dict[str, str]:
        """Return the content digests of all instances but the report, which names times."""
        return {name: m["content"] for name, m in self.manifests().items() if name != "reporting"}

    def weights(self) -> bytes:
        """Return the bytes of the final model."""
        return (self.path / "results/runs/tiny/base/conversion/model.safetensors").read_bytes()


@pytest.fixture(scope="session")
def new_project(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Project]:
    """Make a project in which nothing ran yet, or a copy of one."""

    def make(environment: Mapping[str, str], copied: Project | None = None) -> Project:
        path = tmp_path_factory.mktemp("cluster") / "project"
        if copied is not None:
            shutil.copytree(copied.path, path, symlinks=True)
            return Project(path, environment)
        for part in PARTS:
            target = path / part
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
            copy(ROOT / part, target)
        site = path / "profiles/slurm/site.yaml"
        site.write_text(site.read_text().replace("local: [reporting]", LIGHT))
        return Project(path, environment)

    return make


@pytest.fixture(scope="session")
def local_run(new_project: Callable[..., Project]) -> Project:
    """config/tiny.yaml trained by two ranks on this machine, without Slurm."""
    project = new_project(dict(os.environ))
    two = "pretraining={numerics: {world_size: 2}, runtime: {nodes: 2}}"
    done = project.call("snakemake", "--configfile", "config/tiny.yaml", "--config", two)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return project
