"""`modalities doctor` against a real Slurm, and where there is none."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from modalities import doctor
from modalities.doctor import Finding, Target
from modalities.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def found(findings: Any) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}


def target(**keys: Any) -> Target:
    base: dict[str, Any] = {
        "profile": None,
        "settings": {},
        "site": None,
        "store": Path("store"),
        "needed_bytes": 1,
        "needed_inodes": 1,
    }
    return Target(**{**base, **keys})


def test_without_slurm_it_says_where_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert str(next(doctor.slurm(target()))) == (
        "BAD  slurm: sinfo is missing or fails; run this on a login node of the cluster"
    )


def test_space_is_compared_with_the_plan(tmp_path: Path) -> None:
    assert found(doctor._space(target(store=tmp_path / "a/b")))["space"].state == "good"
    short = found(doctor._space(target(store=tmp_path, needed_bytes=10**18)))["space"]
    assert short.state == "bad"
    assert "needed: about 1,000,000,000,000,000,000" in short.message
    assert "runtime.store" in short.remedy


def test_a_plan_needs_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    wanted = doctor.target_of(None, Path("config/tiny.yaml"))
    assert wanted.needed_bytes > sum(p.stat().st_size for p in (ROOT / "tests/data").iterdir())
    assert wanted.needed_inodes > 100


def test_a_missing_profile_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such profile; take one of those in profiles/"):
        doctor.target_of(tmp_path, None)


@pytest.mark.parametrize(("text", "minutes"), [("1-00:00:00", 1440), ("01:30:00", 90), ("UNLIMITED", None)])
def test_time_limits_are_read(text: str, minutes: int | None) -> None:
    assert doctor._minutes(text) == minutes


@pytest.mark.slurm
def test_a_good_profile_passes_and_each_fault_has_its_remedy(
    slurm: dict[str, str], new_project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = new_project(slurm)
    monkeypatch.chdir(project.path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    profile = Path("profiles/slurm")
    good = found(doctor.slurm(doctor.target_of(profile, None)))
    assert {f.state for f in good.values()} == {"good"}, list(map(str, good.values()))
    assert set(good) == {"slurm", "accounting", "account", "partition", "node"}

    monkeypatch.setattr(doctor, "_probe", lambda _: iter(()))
    config, site = profile / "config.yaml", profile / "site.yaml"
    config.write_text(config.read_text().replace("'ci'", "'other'"))
    site.write_text(site.read_text().replace("partition: main", "partition: scrap"))
    bad = found(doctor.slurm(doctor.target_of(profile, None)))
    assert "other is not yours; write one of ci" in str(bad["account"])
    assert "preempted jobs are cancelled there" in str(bad["partition"])
    site.write_text(
        site.read_text().replace("partition: scrap", "partition: low").replace("minutes: 60}", "minutes: 90}")
    )
    assert "its limit is 60 minutes, not 90" in str(found(doctor.slurm(doctor.target_of(profile, None)))["partition"])
    site.write_text(site.read_text().replace("partition: low", "partition: none"))
    assert "Slurm knows none such; write one of main" in str(
        found(doctor.slurm(doctor.target_of(profile, None)))["partition"]
    )


@pytest.mark.slurm
def test_accounting_that_does_not_answer_is_found(
    slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As with accounting off: the commands are there, and sacct only fails."""
    shutil.copy("/bin/false", tmp_path / "sacct")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    settings = {"slurm-status-command": "sacct"}
    assert "write slurm-status-command: squeue" in str(
        found(doctor._accounting(target(settings=settings)))["accounting"]
    )
    settings = {"slurm-status-command": "squeue", "slurm-init-seconds-before-status-checks": 20}
    assert found(doctor._accounting(target(settings=settings)))["accounting"].state == "good"
    settings = {"slurm-status-command": "squeue", "slurm-init-seconds-before-status-checks": 120}
    assert "squeue forgets jobs after 300 s, before 360 s" in str(
        found(doctor._accounting(target(settings=settings)))["accounting"]
    )


def test_a_folder_or_python_that_nodes_do_not_see_is_told_apart() -> None:
    missing = doctor._probe_failed(["FileNotFoundError: [Errno 2] No such file or directory: '.doctor-1'"])
    assert "work on a shared file system" in missing.remedy
    python = doctor._probe_failed(["slurmstepd: error: execve(): /x/python: No such file or directory"])
    assert f"make {sys.prefix} visible" in python.remedy
