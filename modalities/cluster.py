"""What a Slurm site allows, which queue a job goes to, and what a running job asks Slurm about itself.

A profile folder may hold a `site.yaml` beside its `config.yaml`: its `Site`. The head finds it through `--workflow-profile`,
hands its path to jobs in `MODALITIES_SITE`, and refuses at planning what no queue takes. Snakemake's own chooser knows
partitions only; on many sites the QOS decides.

Inside a rule most of Slurm's variables are gone (Snakemake's jobstep executor removes them), so a job asks `squeue` and
`scontrol`.
"""

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from modalities import config
from modalities.config import key
from modalities.errors import ConfigError, Invalid

SITE = "MODALITIES_SITE"
NAME = "site.yaml"
INTERRUPTED = 75
"""Exit status of a job that saved its state and wants to be started again."""
MAX_RESTARTS = 200


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Queue:
    """One way into the cluster, with its limits."""

    partition: str | None = key(None, help="Slurm partition.", kind="runtime")
    qos: str | None = key(None, help="Slurm QOS.", kind="runtime")
    devices: bool | None = key(None, help="Only jobs with devices, only those without, or both.", kind="runtime")
    min_nodes: int = key(1, help="Fewest nodes of a job.", kind="runtime")
    max_nodes: int | None = key(None, help="Most nodes of a job; null: not known.", kind="runtime")
    max_minutes: int | None = key(None, help="Longest run time; null: not known.", kind="runtime")

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.qos or self.partition or "the default partition"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Limits and habits of one cluster."""

    name: str = key(help="What the site is called.", kind="runtime")
    queues: tuple[Queue, ...] = key(help="Ways in; the first that fits is taken.", kind="runtime")
    devices_per_node: int = key(0, help="Accelerators of a node.", kind="runtime")
    gres: str = key("gpu", help="How Slurm names them.", kind="runtime")
    cpus_per_node: int = key(help="CPUs of a node that a job may ask for.", kind="runtime")
    memory_mb_per_node: int = key(help="Memory of a node that a job may ask for.", kind="runtime")
    whole_nodes: bool = key(
        False, help="Whether a job with devices is given, and pays for, whole nodes.", kind="runtime"
    )
    minutes: dict[str, int] = key(help="Run time to ask for: `default`, and by plan node.", kind="runtime")
    local: tuple[str, ...] = key(
        ("reporting",),
        help="Plan nodes whose jobs run beside Snakemake, as each Slurm job costs about 10 s.",
        kind="runtime",
    )
    environment: dict[str, str] = key(
        factory=dict, help="Variables for every job, unless they are set where the run is started.", kind="runtime"
    )
    signal_seconds: int = key(
        120, help="Time before the limit at which training is told to save and to queue again.", kind="runtime"
    )

    def __post_init__(self) -> None:
        if not self.queues:
            raise Invalid("queues", "expected at least one queue, got none")
        if "default" not in self.minutes:
            raise Invalid("minutes", f"expected the key default, got {sorted(self.minutes)}")
        for name in ("partition", "qos"):
            if len({getattr(q, name) is None for q in self.queues}) > 1:
                raise Invalid("queues", f"expected {name} in every queue or in none, got it in some")

    def minutes_of(self, node: str) -> int:
        """Return the run time to ask for."""
        return self.minutes.get(node, self.minutes["default"])


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What one job needs."""

    label: str
    nodes: int = 1
    devices: int = 0
    """On each node."""
    cpus: int = 1
    """On each node."""
    memory_mb: int = 500
    """On each node."""
    minutes: int = 60


def load_site(profile: Path) -> Site | None:
    """Return the site of a profile folder, or None if it has no `site.yaml`."""
    path = profile / NAME
    return config.load(Site, config.read(path)) if path.exists() else None


def profile_of(arguments: Sequence[str]) -> Path | None:
    """Return the folder that `--workflow-profile` names on a Snakemake command line."""
    for position, argument in enumerate(arguments):
        if argument == "--workflow-profile" and position + 1 < len(arguments):
            return Path(arguments[position + 1])
        if argument.startswith("--workflow-profile="):
            return Path(argument.partition("=")[2])
    return None


def choose(site: Site, request: Request) -> Queue:
    """Return the first queue that takes a request; raise `ConfigError` that names the limit in the way."""
    limits = (
        (request.devices, site.devices_per_node, "devices on a node", "spread the ranks over more nodes"),
        (request.cpus, site.cpus_per_node, "CPUs on a node", "ask for fewer threads"),
        (request.memory_mb, site.memory_mb_per_node, "MB of memory on a node", "use more nodes"),
    )
    for wanted, limit, what, remedy in limits:
        if wanted > limit:
            raise ConfigError(
                f"{request.label}: expected at most {limit} {what} of {site.name}, got {wanted}; {remedy}"
            )
    reasons = []
    for queue in site.queues:
        reason = _reason_against(queue, request)
        if reason is None:
            return queue
        reasons.append(f"{queue.label}: {reason}")
    raise ConfigError(
        f"{request.label}: expected a queue of {site.name} for {request.nodes} node(s) and {request.minutes} minutes, got none "
        f"({'; '.join(reasons)}); ask for fewer nodes, or for less time in {NAME}: a training goes on in the next job"
    )


def _reason_against(queue: Queue, request: Request) -> str | None:
    if queue.devices is not None and queue.devices != (request.devices > 0):
        return "only for jobs with devices" if queue.devices else "only for jobs without devices"
    if request.nodes < queue.min_nodes:
        return f"at least {queue.min_nodes} nodes"
    if queue.max_nodes is not None and request.nodes > queue.max_nodes:
        return f"at most {queue.max_nodes} nodes"
    if queue.max_minutes is not None and request.minutes > queue.max_minutes:
        return f"at most {queue.max_minutes} minutes"
    return None


# --- inside a job ----------------------------------------------------------------------------------------------------


def ask(*command: str, timeout_seconds: float = 60.0) -> str | None:
    """Return what a Slurm command prints, or None if it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def job_id() -> str | None:
    """Return the id of the Slurm job this process is in."""
    return os.environ.get("SLURM_JOB_ID")


def allocated_nodes() -> int:
    """Return how many nodes this job has; 1 outside Slurm."""
    job = job_id()
    answer = ask("squeue", "-h", "-j", job, "-o", "%D") if job is not None else None
    return int(answer) if answer is not None and answer.isdigit() else 1


def address(node: str) -> str:
    """Return the address under which other nodes reach a node: Slurm's, else its name (some sites deny the question)."""
    shown = ask("scontrol", "show", "node", node, "-o") or ""
    found = [word.partition("=")[2] for word in shown.split() if word.startswith("NodeAddr=")]
    return found[0] if found else node


def again(code: int) -> int:
    """Put this Slurm job back into the queue, under its own id, if it saved its state; else return its exit status.

    The requeue ends this process, so the job is never seen as failed.
    """
    job = job_id()
    if code != INTERRUPTED or job is None:
        return code
    shown = ask("scontrol", "show", "job", job, "-o") or ""
    restarts = next((int(w.partition("=")[2]) for w in shown.split() if w.startswith("Restarts=")), 0)
    if restarts >= MAX_RESTARTS:
        print(f"modalities: job {job} was restarted {restarts} times; it is not queued again", file=sys.stderr)
        return code
    if ask("scontrol", "requeue", job) is None and ask("squeue", "-h", "-j", job, "-o", "%T") == "RUNNING":
        print(f"modalities: Slurm refuses to queue job {job} again; the next start of the run goes on", file=sys.stderr)
        return code
    time.sleep(300)
    return code


if __name__ == "__main__":
    raise SystemExit(again(int(sys.argv[1])))
