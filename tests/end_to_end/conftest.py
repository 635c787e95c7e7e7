"""Whole runs of config/tiny.yaml through Snakemake, in copies of the project outside the clone."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("config", "workflow", "rules", "profiles", "environment.yml", "tests/data")


@dataclasses.dataclass(frozen=True)
class Project:
    """A copy of what a run needs."""

    path: Path
    config: str = "config/tiny.yaml"

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("MODALITIES_")}
        return kept | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)}

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run `modalities ...`."""
        return self._run([sys.executable, "-m", "modalities", *arguments])

    def snakemake(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run `snakemake --configfile ...`."""
        return self._run([sys.executable, "-m", "snakemake", "--configfile", self.config, *arguments])

    def _run(self, command: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, cwd=self.path, env=self.environment(), capture_output=True, text=True, timeout=900, check=False
        )

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start `snakemake --configfile ...` in a process group of its own."""
        command = [sys.executable, "-m", "snakemake", "--configfile", self.config, *arguments]
        with (self.path / f"start-{time.time_ns()}.log").open("w") as log:
            return subprocess.Popen(
                command,
                cwd=self.path,
                env=self.environment(),
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def plan(self, *arguments: str) -> dict[str, Any]:
        """Return `modalities plan --json`."""
        done = self.command("plan", self.config, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        plan: dict[str, Any] = json.loads(done.stdout)
        return plan

    def to_run(self, *arguments: str) -> list[str]:
        """Return the names of the nodes that would run."""
        nodes = self.plan(*arguments)["nodes"]
        return [f"{n['node']}({n['scope']})" if n["scope"] else n["node"] for n in nodes if n["state"] == "run"]

    def manifests(self) -> dict[str, dict[str, Any]]:
        """Return the manifests of all instances, by label."""
        paths = (
            p for p in (self.path / "results/store").glob("[!.]*/*/manifest.json") if p.parent.parent.name != "units"
        )
        found = (json.loads(p.read_text()) for p in paths)
        return {m["label"]: m for m in found}

    def weights(self) -> bytes:
        """Return the bytes of the final model."""
        run = self.config.rpartition("/")[2].removesuffix(".yaml")
        return (self.path / f"results/runs/{run}/base/conversion/model.safetensors").read_bytes()


def make(path: Path) -> Project:
    """Copy the project's files to a new folder."""
    for part in PARTS:
        target = path / part
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
        copy(ROOT / part, target)
    return Project(path)


@pytest.fixture
def new_project(tmp_path: Path) -> Project:
    """A project in which nothing ran yet."""
    return make(tmp_path / "project")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project in which config/tiny.yaml ran to its end. Tests must leave it as it is."""
    project = make(tmp_path_factory.mktemp("tiny") / "project")
    done = project.command("run", project.config)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (project.path / "run.out").write_text(done.stdout)
    yield project


@pytest.fixture
def copy_of_tiny(tiny: Project, tmp_path: Path) -> Project:
    """A copy of the finished project, made as `cp -r` makes it: links kept, times not."""
    target = tmp_path / "copied"
    shutil.copytree(tiny.path, target, symlinks=True, copy_function=shutil.copy)
    return Project(target)
