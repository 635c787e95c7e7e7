"""`modalities run`: start Snakemake on a config and show how far its jobs are."""

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from modalities import config as strict
from modalities import plan as planning
from modalities import status
from modalities.config import Tree
from modalities.errors import ConfigError
from modalities.plan import Plan

PROJECT = Path(__file__).resolve().parent.parent
PR_SET_PDEATHSIG = 1
LINE_SECONDS = 15.0
"""Time between progress lines where the output is not a terminal."""


def tree_of(path: Path, settings: Sequence[str]) -> Tree:
    """Return the config tree of a file with `key=value` overrides."""
    tree = planning.load_tree([path])
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {setting}: expected key=value, such as pretraining.learning_rate=3e-4")
        tree = strict.override(tree, name, strict.parse(text, f"--set {name}"))
    return tree


def run(path: Path, settings: Sequence[str], arguments: Sequence[str]) -> int:
    """Run everything that is missing and return Snakemake's exit status.

    Snakemake's own output goes to `results/runs/<run>/logs/snakemake.log`; what a user wants to know is shown here.
    """
    plan = planning.resolve(tree_of(path, settings))
    command = _command(path, settings, arguments)
    print("$", shlex.join(command), flush=True)
    if "--dry-run" in arguments or "-n" in arguments:
        return subprocess.run([*_python(), *command[1:]], check=False).returncode
    before = sum(status.is_stamped(plan, i) for i in plan.instances.values())
    log = plan.folder / "logs" / "snakemake.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        start = output.tell()
        child = subprocess.Popen(
            [*_python(), *command[1:]],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C reaches it once, through us
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - this process has one thread
        )
        code = _watch(child, plan)
    if code != 0:
        _explain(plan, log, start)
        return 1
    if before == len(plan.instances):
        print(f"\nnothing to do: all {before} nodes are there")
    print(status.closing(plan))
    return 0


def _command(path: Path, settings: Sequence[str], arguments: Sequence[str]) -> list[str]:
    command = ["snakemake", "--configfile", str(path)]
    if not Path("workflow/Snakefile").exists():
        command += ["--snakefile", os.path.relpath(PROJECT / "workflow" / "Snakefile")]
    if not Path("profiles/default").exists() and "--workflow-profile" not in arguments:
        command += ["--workflow-profile", os.path.relpath(PROJECT / "profiles" / "default")]
    if settings:
        command += ["--config", *(_nested(setting) for setting in settings)]
    extra = [a for a in arguments if a != "--"]
    return [*command, *extra]


def _nested(setting: str) -> str:
    """Write `a.b.c=x` as Snakemake takes it: `a={b: {c: x}}`."""
    name, _, value = setting.partition("=")
    first, *rest = name.split(".")
    for part in reversed(rest):
        value = "{" + f"{part}: {value}" + "}"
    return f"{first}={value}"


def _python() -> list[str]:
    """Run the Snakemake of this environment, whatever PATH says."""
    return [sys.executable, "-m", "snakemake"]


def _end_with_parent() -> None:
    """Let the kernel interrupt Snakemake if this process dies, even by SIGKILL. Linux only; elsewhere it goes on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def _watch(child: "subprocess.Popen[bytes]", plan: Plan) -> int:
    """Show progress until the child ends; hand on signals as SIGINT, on which Snakemake ends its jobs."""

    def forward(number: int, frame: FrameType | None) -> None:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        if sys.stdout.isatty():
            _watch_terminal(child, plan)
        else:
            _watch_lines(child, plan)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return child.wait()


def _watch_terminal(child: "subprocess.Popen[bytes]", plan: Plan) -> None:
    from rich.live import Live

    with Live(status.table(plan), refresh_per_second=2, transient=False) as live:
        while child.poll() is None:
            time.sleep(0.5)
            live.update(status.table(plan))


def _watch_lines(child: "subprocess.Popen[bytes]", plan: Plan) -> None:
    known = {i.id for i in plan.instances.values() if status.is_stamped(plan, i)}
    shown = time.monotonic()
    while child.poll() is None:
        time.sleep(0.3)
        for instance in plan.instances.values():
            if instance.id not in known and status.is_stamped(plan, instance):
                known.add(instance.id)
                print(status.done_line(plan, instance, len(known)), flush=True)
                shown = time.monotonic()
        if time.monotonic() - shown > LINE_SECONDS:
            shown = time.monotonic()
            for line in status.running_lines(plan):
                print(f"  {line}", flush=True)


def _explain(plan: Plan, log: Path, start: int) -> None:
    """Print why a run failed: each failed job's own message, else the end of Snakemake's log."""
    failures = status.failures(plan)
    for name, message, job_log in failures:
        print(f"\nmodalities: {name} failed: {message}\n  log: {job_log}", file=sys.stderr)
    if not failures:
        text = log.read_bytes()[start:].decode("utf-8", "replace").strip().splitlines()
        print("\n".join(text[-15:]), file=sys.stderr)
    print(f"\nSnakemake's own log: {log}. The same command goes on where this one stopped.", file=sys.stderr)
