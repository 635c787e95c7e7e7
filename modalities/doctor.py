"""`modalities doctor`: what would stop a run on this machine or cluster, found before anything is submitted.

Each check is one function that returns findings; every finding that is not good carries its remedy. Nothing is submitted but,
where a profile names Slurm, one job of a few seconds that looks at the store and at Python from a node.
"""

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from modalities import cluster
from modalities.cluster import Site, ask
from modalities.errors import ConfigError

MIN_SLURM = (20, 11)
PROBE_MINUTES = 2
State = Literal["good", "warning", "bad"]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What one check saw, and what to do about it."""

    state: State
    subject: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        mark = {"good": "ok  ", "warning": "note", "bad": "BAD "}[self.state]
        return f"{mark} {self.subject}: {self.message}" + (f"; {self.remedy}" if self.remedy else "")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What is looked at."""

    profile: Path | None
    settings: Mapping[str, Any]
    """The profile's config.yaml."""
    site: Site | None
    store: Path
    needed_bytes: int
    needed_inodes: int

    def resource(self, name: str) -> str | None:
        """Return a default resource of the profile; text stands in quotes there, as Snakemake evaluates it."""
        value = self.settings.get("default-resources", {}).get(name)
        return None if value is None else str(value).strip("'\"")


def add_parser(commands: Any) -> None:
    """Add the subcommand to the command line."""
    text = "Find what would stop a run here or on a cluster, with remedies, before anything is submitted."
    parser = commands.add_parser("doctor", help=text, description=text)
    parser.add_argument("config", type=Path, nargs="?", help="config file whose plan gives the space that is needed")
    parser.add_argument("--workflow-profile", type=Path, help="profile folder, such as profiles/slurm")
    parser.set_defaults(function=command)


def command(args: argparse.Namespace) -> int:
    """Print all findings; return 2 if one of them would stop a run."""
    target = target_of(args.workflow_profile, args.config)
    worst = 0
    for finding in examine(target):
        print(finding, flush=True)
        worst = max(worst, 2 if finding.state == "bad" else 0)
    return worst


def target_of(profile: Path | None, config: Path | None) -> Target:
    """Read what is to be looked at."""
    settings: Mapping[str, Any] = {}
    if profile is not None:
        path = profile / "config.yaml"
        try:
            settings = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such profile; take one of those in profiles/") from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{path}: not valid YAML: {error}") from None
    store, num_bytes, inodes = Path("results/store"), 0, 0
    if config is not None:
        from modalities import plan as planning

        plan = planning.resolve(planning.load_tree([config]))
        store = plan.store
        num_bytes, inodes = _needs(plan)
    return Target(
        profile=profile,
        settings=settings,
        site=None if profile is None else cluster.load_site(profile),
        store=store,
        needed_bytes=num_bytes,
        needed_inodes=inodes,
    )


def _needs(plan: Any) -> tuple[int, int]:
    """Estimate bytes and inodes of a plan: text once, columns and tokens beside it, a checkpoint per segment and two more."""
    inputs = sum(int(d.get("size", 0)) for i in plan.instances.values() if i.node == "ingestion" for d in i.unit_data)
    trained = sum(1 for i in plan.instances.values() if i.node == "pretraining")
    parameters = max((t.get("parameters", 0) for t in plan.totals.values()), default=0)
    units = sum(len(i.units) for i in plan.instances.values())
    return 6 * inputs + (trained + 2) * 12 * parameters, 6 * units + 30 * len(plan.instances)


def examine(target: Target) -> Iterator[Finding]:
    """Yield the findings of all checks that apply."""
    yield from _packages()
    yield from _space(target)
    yield from _devices(target)
    if target.settings.get("executor") == "slurm":
        yield from slurm(target)
    yield from _offline()


# --- this machine ----------------------------------------------------------------------------------------------------


def _packages() -> Iterator[Finding]:
    try:
        found = importlib.metadata.version("modalities")
    except importlib.metadata.PackageNotFoundError:
        yield Finding("good", "package", "no other package named modalities is installed")
    else:
        remedy = "pip uninstall modalities, or use a second environment for it"
        yield Finding(
            "bad", "package", f"the environment also holds modalities {found}, with the same import name", remedy
        )
    for name in ("torch", "snakemake", "snakemake_executor_plugin_slurm"):
        if importlib.util.find_spec(name) is None:
            yield Finding("bad", "package", f"{name} cannot be imported", "pip install --editable .")


def _space(target: Target) -> Iterator[Finding]:
    place = target.store.absolute()
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK):
        yield Finding("bad", "store", f"{place} cannot be written", "set runtime.store to a folder of yours")
        return
    free, inodes = shutil.disk_usage(place).free, os.statvfs(place).f_favail
    short = [
        f"{what} free: {have:,}, needed: about {need:,}"
        for what, have, need in (("bytes", free, target.needed_bytes), ("inodes", inodes, target.needed_inodes))
        if need > have > 0 or (have == 0 and what == "bytes")
    ]
    if short:
        remedy = "set runtime.store to a larger file system, or `modalities store gc`"
        yield Finding("bad", "space", f"{place}: {'; '.join(short)}", remedy)
    else:
        yield Finding("good", "space", f"{place}: {free:,} bytes and {inodes:,} inodes free")
    quota = ask("quota", "-w", timeout_seconds=20)
    if quota and "*" in quota:
        yield Finding("bad", "quota", "a quota is exceeded", "see `quota`; remove files or ask the site for more")


def _devices(target: Target) -> Iterator[Finding]:
    """Ask for GPUs where they are, without loading torch into this process."""
    if target.settings.get("executor") == "slurm":
        return
    code = "import torch; print(torch.cuda.device_count(), torch.distributed.is_nccl_available())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield Finding("bad", "torch", done.stderr.strip().splitlines()[-1], "pip install --editable . again")
        return
    count, nccl = done.stdout.split()
    if int(count) > 0 and nccl != "True":
        yield Finding("bad", "devices", f"{count} GPU(s), but this torch has no NCCL", "install torch for CUDA")
    else:
        yield Finding("good", "devices", f"{count} GPU(s)" + ("" if int(count) > 0 else ": training runs on the CPU"))


def _offline() -> Iterator[Finding]:
    if os.environ.get("HF_HUB_OFFLINE") != "1":
        return
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    if not home.exists() or not any(home.iterdir()):
        remedy = "run what needs them once where there is internet, with the same HF_HOME; the shipped tasks need none"
        yield Finding("warning", "offline", f"HF_HUB_OFFLINE is set and {home} is empty", remedy)
    else:
        yield Finding("good", "offline", f"caches of Hugging Face are in {home}")


# --- Slurm -----------------------------------------------------------------------------------------------------------


def slurm(target: Target) -> Iterator[Finding]:
    """Look at Slurm; the checks after the first need its commands."""
    version = ask("sinfo", "--version")
    if version is None:
        yield Finding("bad", "slurm", "sinfo is missing or fails", "run this on a login node of the cluster")
        return
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < MIN_SLURM:
        yield Finding("bad", "slurm", f"{version}: too old for srun's options", "20.11 or newer is needed")
    else:
        yield Finding("good", "slurm", version)
    checks: tuple[Callable[[Target], Iterator[Finding]], ...] = (_accounting, _account, _partitions, _probe)
    for check in checks:
        yield from check(target)


def _accounting(target: Target) -> Iterator[Finding]:
    """With accounting off the plugin's default status command answers nothing, and Snakemake waits for ever."""
    used = target.settings.get("slurm-status-command")
    works = ask("sacct", "-X", "-n", "-o", "JobID", timeout_seconds=30) is not None
    if used == "squeue":
        waits = 3 * int(target.settings.get("slurm-init-seconds-before-status-checks", 40))
        age = _config_number("MinJobAge")
        if age is not None and age < waits:
            remedy = "lower slurm-init-seconds-before-status-checks" + (", or use sacct" if works else "")
            yield Finding("bad", "accounting", f"squeue forgets jobs after {age} s, before {waits} s", remedy)
        else:
            yield Finding("good", "accounting", "squeue says how jobs ended")
    elif works:
        yield Finding("good", "accounting", "sacct answers")
    else:
        remedy = "write slurm-status-command: squeue into the profile"
        yield Finding("bad", "accounting", "sacct does not answer, so Snakemake would wait for ever", remedy)


def _config_number(name: str) -> int | None:
    shown = ask("scontrol", "show", "config") or ""
    found = re.search(rf"^{name}\s*=\s*(\d+)", shown, re.MULTILINE)
    return int(found[1]) if found else None


def _account(target: Target) -> Iterator[Finding]:
    account = target.resource("slurm_account")
    shown = ask("sacctmgr", "-n", "-P", "show", "associations", f"user={_user()}", "format=account")
    if account is None:
        yield Finding("warning", "account", "the profile names none", "write default-resources: slurm_account")
    elif shown is None or not shown.strip():
        yield Finding(
            "warning", "account", f"{account}: Slurm does not say whether it is yours", "the trial job will tell"
        )
    elif account.lower() not in shown.lower().split():
        yours = ", ".join(sorted(set(shown.split())))
        yield Finding("bad", "account", f"{account} is not yours", f"write one of {yours} as slurm_account")
    else:
        yield Finding("good", "account", account)


def _user() -> str:
    import getpass

    return getpass.getuser()


def _partitions(target: Target) -> Iterator[Finding]:
    queues = target.site.queues if target.site is not None else ()
    named = dict.fromkeys(p for q in queues if (p := q.partition) is not None)
    default = target.resource("slurm_partition")
    for name in named or ([default] if default is not None else []):
        shown = ask("scontrol", "show", "partition", name, "-o")
        if shown is None:
            known = ", ".join(re.findall(r"PartitionName=(\S+)", ask("scontrol", "show", "partition", "-o") or ""))
            yield Finding("bad", "partition", f"{name}: Slurm knows none such", f"write one of {known}")
            continue
        facts = dict(word.partition("=")[::2] for word in shown.split())
        yield from _partition(name, facts, [q for q in queues if q.partition == name])
    for qos in dict.fromkeys(q for queue in queues if (q := queue.qos) is not None):
        shown = ask("sacctmgr", "-n", "-P", "show", "qos", qos, "format=name,preemptmode")
        if shown is not None and not shown.strip():
            yield Finding("bad", "qos", f"{qos}: Slurm knows none such", "see `sacctmgr show qos format=name`")
        elif shown is not None and shown.strip().lower().endswith("|cancel"):
            yield _cancels("qos", qos)


def _partition(name: str, facts: Mapping[str, str], queues: list[cluster.Queue]) -> Iterator[Finding]:
    if facts.get("PreemptMode", "").upper() == "CANCEL":
        yield _cancels("partition", name)
        return
    limit = _minutes(facts.get("MaxTime", ""))
    over = [q for q in queues if limit is not None and q.max_minutes is not None and q.max_minutes > limit]
    if over:
        remedy = f"write max_minutes: {limit} into site.yaml"
        yield Finding("bad", "partition", f"{name}: its limit is {limit} minutes, not {over[0].max_minutes}", remedy)
    else:
        mode = facts.get("PreemptMode", "not said")
        yield Finding("good", "partition", f"{name}: MaxTime {facts.get('MaxTime')}, preempt mode {mode}")


def _cancels(subject: str, name: str) -> Finding:
    message = f"{name}: preempted jobs are cancelled there, and Snakemake would wait for them for ever"
    return Finding("bad", subject, message, "use one whose PreemptMode is REQUEUE or OFF")


def _minutes(text: str) -> int | None:
    """Return the minutes of Slurm's `days-hours:minutes:seconds`; None for no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes = (int(found[i] or 0) for i in (1, 2, 3))
    return (24 * days + hours) * 60 + minutes


def _probe(target: Target) -> Iterator[Finding]:
    """Run one short job: it must see this folder and import this package with this Python."""
    queue = (
        target.site.queues[0]
        if target.site is not None
        else cluster.Queue(partition=target.resource("slurm_partition"))
    )
    name = f".doctor-{uuid.uuid4().hex}"
    code = f"import modalities.cluster, pathlib, snakemake; print(pathlib.Path({name!r}).read_text())"
    options = {
        "--account": target.resource("slurm_account"),
        "--partition": queue.partition,
        "--qos": queue.qos,
        "--time": str(PROBE_MINUTES),
        "--mem": "500M",
    }
    step = ["srun", "--ntasks=1", "--quiet", *(f"{k}={v}" for k, v in options.items() if v is not None)]
    try:
        Path(name).write_text("seen", encoding="ascii")
        done = subprocess.run(
            [*step, sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
        )
    except subprocess.TimeoutExpired:
        yield Finding(
            "warning", "node", "the trial job waited 10 minutes in the queue", "try again when nodes are free"
        )
        return
    finally:
        Path(name).unlink(missing_ok=True)
    if done.returncode == 0 and "seen" in done.stdout:
        yield Finding("good", "node", "a node sees this folder and imports this Python environment")
        return
    yield _probe_failed((done.stderr.strip() or done.stdout.strip()).splitlines()[-1:])


def _probe_failed(last: list[str]) -> Finding:
    line = last[0] if last else "no message"
    if "FileNotFoundError" in line:
        return Finding("bad", "node", f"{Path.cwd()} is not there on a node", "work on a shared file system")
    if "No module named" in line or "No such file" in line or "execve" in line:
        return Finding("bad", "node", f"Python on a node: {line}", f"make {sys.prefix} visible to nodes")
    return Finding(
        "bad", "node", f"the trial job failed: {line}", "mend what it says; the same options go to every job"
    )


if __name__ == "__main__":
    sub = argparse.ArgumentParser(prog="modalities").add_subparsers(dest="command", required=True)
    add_parser(sub)
    arguments = sub.choices["doctor"].parse_args(sys.argv[1:])
    raise SystemExit(command(arguments))
