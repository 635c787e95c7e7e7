"""Site files, the choice of a queue, and the sbatch line that each profile leads to; needs no Slurm."""

import shlex
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import set_gres_string
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra

from modalities import cluster, config, dag, plan
from modalities.cluster import Request
from modalities.errors import ConfigError
from modalities.plan import Plan

ROOT = Path(__file__).resolve().parents[2]
PROFILES = sorted(p.parent for p in (ROOT / "profiles").glob("*/site.yaml"))


class Resources(dict[str, Any]):
    """Like Snakemake's: a mapping whose keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


def resolve(monkeypatch: pytest.MonkeyPatch, **pretraining: Any) -> Plan:
    monkeypatch.chdir(ROOT)
    tree = plan.load_tree([Path("config/tiny.yaml")], {"pretraining": pretraining})
    return plan.resolve(tree)


def sbatch(profile: Path, of: Plan, node: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Return the words of the sbatch line of the first job of a node."""
    monkeypatch.setenv(cluster.SITE, str(profile / cluster.NAME))
    monkeypatch.setattr(dag.Dag, "_only_stamps", lambda *_: False)
    rules = dag.Dag(folder / "plan.json", of)
    instance = next(i for i in of.instances.values() if i.node == node)
    wildcards = types.SimpleNamespace(work=instance.digest)
    settings = yaml.safe_load((profile / "config.yaml").read_text())
    found = Resources()
    for name, value in rules.resources(node).items():
        found[name] = value(wildcards, 1) if callable(value) else value
    job = types.SimpleNamespace(resources=found, threads=rules.threads(node)(wildcards), is_group=lambda: False)
    account = settings["default-resources"]["slurm_account"].strip("'")
    params = {
        "run_uuid": "run",
        "slurm_logfile": "log",
        "comment_str": "rule",
        "account": f"-A {account}",
        "partition": f"-p {found['slurm_partition']}" if "slurm_partition" in found else "",
        "workdir": None,
    }
    validate_slurm_extra(job)
    return shlex.split(get_submit_command(job, params) + set_gres_string(job))


FOUR_NODES = {"numerics": {"world_size": 16}, "runtime": {"nodes": 4}, "global_batch_tokens": 1024}
EXPECTED = {
    "slurm": None,
    "leonardo": {"--qos=normal", "-p", "boost_usr_prod", "--gres=gpu:4", "--cpus-per-task=32", "1440"},
    "marenostrum5": {"--qos=acc_ehpc", "--gres=gpu:4", "--cpus-per-task=80", "1440"},
    "jupiter": {"booster", "--gres=gpu:4", "--cpus-per-task=288", "720"},
}


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
def test_a_profile_leads_to_this_sbatch_line(profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = {**FOUR_NODES, "numerics": {"world_size": 4}} if profile.name == "slurm" else FOUR_NODES
    of = resolve(monkeypatch, **many)
    words = sbatch(profile, of, "pretraining", monkeypatch, tmp_path)
    assert {"--nodes=4", "--ntasks=4", "--ntasks-per-node=1", "--signal=TERM@120"} <= set(words), words
    assert not any(w.startswith("--ntasks-per-gpu") for w in words), "Slurm refuses it beside --ntasks"
    assert (EXPECTED[profile.name] or set()) <= set(words), words
    data = sbatch(profile, of, "ingestion", monkeypatch, tmp_path)
    assert "--ntasks=1" in data
    assert not any(w.startswith(("--nodes", "--gres")) for w in data), data
    assert (profile.name == "marenostrum5") == ("--qos=gp_ehpc" in data), "a job without devices goes to CPU nodes"


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
def test_profiles_hold_what_a_run_relies_on(profile: Path) -> None:
    settings = yaml.safe_load((profile / "config.yaml").read_text())
    assert settings["nolock"] and settings["rerun-incomplete"] and settings["executor"] == "slurm"
    assert settings["rerun-triggers"] == ["mtime", "input"]
    assert settings["default-resources"]["mem_mb"] >= 500
    assert "slurm-array-jobs" not in settings
    if profile.name != "slurm":
        for name in ("config.yaml", "site.yaml"):
            assert "ot yet run there" in (profile / name).read_text()


def site(**keys: Any) -> cluster.Site:
    queues = [
        {"qos": "short", "max_nodes": 2, "max_minutes": 60},
        {"qos": "wide", "min_nodes": 3, "max_nodes": 10, "max_minutes": 60},
        {"qos": "long", "max_nodes": 2, "max_minutes": 600, "devices": True},
    ]
    base = {"name": "here", "queues": queues, "cpus_per_node": 8, "memory_mb_per_node": 1000, "devices_per_node": 4}
    return config.load(cluster.Site, config.from_python({**base, "minutes": {"default": 30}, **keys}, "site.yaml"))


@pytest.mark.parametrize(
    ("request_", "qos"),
    [
        (Request(label="x", minutes=60), "short"),
        (Request(label="x", nodes=3, minutes=60), "wide"),
        (Request(label="x", devices=1, minutes=61), "long"),
    ],
)
def test_the_first_queue_that_fits_is_chosen(request_: Request, qos: str) -> None:
    assert cluster.choose(site(), request_).qos == qos


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            Request(label="x", minutes=61),
            r"x: expected a queue of here .* \(short: at most 60 minutes; .* long: only for jobs with",
        ),
        (Request(label="x", nodes=11), "wide: at most 10 nodes"),
        (Request(label="x", devices=5), "x: expected at most 4 devices on a node of here, got 5; spread the ranks"),
        (Request(label="x", cpus=9), "expected at most 8 CPUs"),
        (Request(label="x", memory_mb=1001), "expected at most 1000 MB"),
    ],
)
def test_a_request_above_a_limit_names_the_limit(request_: Request, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cluster.choose(site(), request_)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"minutes": {"pretraining": 3}}, "minutes: expected the key default"),
        ({"queues": [{"qos": "a"}, {"partition": "b"}]}, "expected partition in every queue or in none"),
        ({"queues": []}, "expected at least one queue"),
        ({"cpus": 3}, "unknown key"),
    ],
)
def test_a_bad_site_file_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        site(**keys)


def test_a_run_above_a_limit_ends_at_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    of = resolve(monkeypatch, numerics={"world_size": 8}, runtime={"nodes": 8})
    monkeypatch.setattr(sys, "argv", ["snakemake", "--workflow-profile", "profiles/slurm"])
    monkeypatch.setenv(cluster.SITE, "")
    with pytest.raises(ConfigError, match=r"pretraining\(0-20\): .* at most 4 nodes"):
        dag._find_site(of)


def test_nodes_divide_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"pretraining.runtime.nodes: expected a divisor of world_size=4, got 3"):
        resolve(monkeypatch, numerics={"world_size": 4}, runtime={"nodes": 3})


def test_without_a_site_rules_ask_for_memory_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    of = resolve(monkeypatch)
    monkeypatch.delenv(cluster.SITE, raising=False)
    assert set(dag.Dag(tmp_path / "plan.json", of).resources("pretraining")) == {"mem_mb"}


def test_a_finished_or_failed_job_is_not_queued_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ask", lambda *_: pytest.fail("Slurm is not asked"))
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert cluster.again(2) == 2
    monkeypatch.delenv("SLURM_JOB_ID")
    assert cluster.again(cluster.INTERRUPTED) == cluster.INTERRUPTED
