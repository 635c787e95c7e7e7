"""How far a run is, from files alone: stamps, manifests, and what live jobs write into their work folders."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modalities import manifest
from modalities.errors import StoreError
from modalities.plan import Instance, Plan
from modalities.stages import NODES
from modalities.store import Store, is_alive

if TYPE_CHECKING:
    from rich.table import Table


def is_stamped(plan: Plan, instance: Instance) -> bool:
    """Say whether a run has an instance behind it."""
    return plan.stamp(instance.node, instance.digest).exists()


def state(plan: Plan, instance: Instance) -> str:
    """Return done, running, failed or waiting."""
    if is_stamped(plan, instance) and (plan.store / instance.node / instance.digest / manifest.NAME).exists():
        return "done"
    works = [Store(plan.store).work(instance.node, key) for key in (instance.digest, *instance.units)]
    if any(_has_live_owner(work) for work in works if work.exists()):
        return "running"
    return "failed" if any((work / "outcome.json").exists() for work in works if work.exists()) else "waiting"


def _has_live_owner(work: Path) -> bool:
    for owner in work.glob("lease-*/owner.json"):
        try:
            if is_alive(json.loads(owner.read_text(encoding="utf-8"))):
                return True
        except (OSError, ValueError):
            continue
    return False


def progress(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield what live jobs of this run say of themselves."""
    wanted = {(i.node, key) for i in plan.instances.values() for key in (i.digest, *i.units)}
    for path in sorted((plan.store / ".work").glob("*/*/progress.json")):
        if (path.parent.parent.name, path.parent.name) not in wanted or not _has_live_owner(path.parent):
            continue
        try:
            yield json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue


def running_lines(plan: Plan) -> list[str]:
    """Return a line per live job: done, rate, time left."""
    return [f"{p['label']}: {_amount(p)}{_rate(p)}{_extra(p)}" for p in progress(plan)]


def _amount(p: dict[str, Any]) -> str:
    if p["total"] is None or p["total"] <= 0:
        return f"{_number(p['done'])} {p['unit']}"
    return f"{_number(p['done'])} of {_number(p['total'])} {p['unit']} ({100 * p['done'] / p['total']:.0f} %)"


def _rate(p: dict[str, Any]) -> str:
    elapsed, made = p["now"] - p["started"], p["done"] - p["first"]
    if elapsed <= 0 or made <= 0:
        return ""
    rate = made / elapsed
    left = "" if not p["total"] else f", {duration((p['total'] - p['done']) / rate)} left"
    return f", {_number(rate)}/s{left}"


def _extra(p: dict[str, Any]) -> str:
    shown = {k: v for k, v in p["extra"].items() if isinstance(v, (int, float)) and k in ("loss", "step")}
    return "".join(f", {k} {v:.3f}" if isinstance(v, float) else f", {k} {v}" for k, v in shown.items())


def _number(value: float) -> str:
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / (limit if limit > 1e4 else 1e3):.1f}{suffix}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Return a time span for people."""
    seconds = round(seconds)
    if seconds < 90:
        return f"{seconds} s"
    return f"{seconds // 60} min {seconds % 60:02d} s" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def table(plan: Plan) -> "Table":
    """Return the run as a table: a row per kind of node, and one per live job."""
    from rich.table import Table

    rows = Table(title=f"run {plan.run}", title_justify="left", box=None, pad_edge=False)
    for column in ("stage", "done", "what runs now"):
        rows.add_column(column)
    lines: dict[str, list[str]] = {}
    for p in progress(plan):
        lines.setdefault(p["label"].partition("(")[0].partition(" ")[0], []).append(
            f"{p['label'].partition(' unit ')[0]}: {_amount(p)}{_rate(p)}{_extra(p)}"
        )
    for node in NODES:
        mine = [i for i in plan.instances.values() if i.node == node]
        if mine:
            done = sum(is_stamped(plan, i) for i in mine)
            rows.add_row(node, f"{done}/{len(mine)}", "\n".join(lines.get(node, [])))
    return rows


def text(plan: Plan) -> str:
    """Return the state of a run for `modalities status`."""
    lines = []
    for node in NODES:
        mine = [i for i in plan.instances.values() if i.node == node]
        states = [state(plan, i) for i in mine]
        if mine:
            parts = ", ".join(f"{states.count(s)} {s}" for s in ("done", "running", "failed", "waiting") if s in states)
            lines.append(f"{node:24} {parts}")
    live = running_lines(plan)
    if live:
        lines += ["", "running:", *(f"  {line}" for line in live)]
    failed = failures(plan)
    if failed:
        lines += ["", "failed:"]
        for name, message, log in failed:
            lines += [f"  {name}: {message}", f"    log: {log}"]
            lines += [f"    | {line}" for line in _tail(log)]
    return "\n".join(lines)


def _tail(path: Path, count: int = 5) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
    except OSError:
        return []


def failures(plan: Plan) -> list[tuple[str, str, Path]]:
    """Return name, message and log of what failed and was not made since."""
    found = []
    store = Store(plan.store)
    for instance in plan.instances.values():
        for number, key in enumerate((instance.digest, *instance.units)):
            path = store.work(instance.node, key) / "outcome.json"
            try:
                outcome = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            work = instance.digest if number == 0 else f"{instance.digest}.{(number - 1) % instance.batches}"
            log = plan.folder / "logs" / instance.node / f"{work}.log"
            found.append((instance.name, f"{outcome['class']}: {outcome['message']}", log))
    return found


def done_line(plan: Plan, instance: Instance, number: int) -> str:
    """Return the line that says that an instance is done."""
    head = f"[{number}/{len(plan.instances)}] {instance.name}"
    try:
        made = manifest.read(plan.store / instance.node / instance.digest)
    except StoreError:
        return head
    counts = dict(made.counts)
    parts = []
    if "documents_in" in counts:
        parts.append(f"{counts['documents_out']:,} of {counts['documents_in']:,} documents")
    if "tokens" in counts:
        parts.append(f"{_number(counts['tokens'])} tokens")
    parts.append(duration(made.provenance["elapsed_seconds"]))
    return f"{head}: {', '.join(parts)}"


# --- the end of a run ------------------------------------------------------------------------------------------------


def closing(plan: Plan) -> str:
    """Return what a run ends with: held-out figures, a sample, where model and report are."""
    missing = sum(not is_stamped(plan, i) for i in plan.instances.values())
    if missing:
        return f"\nrun {plan.run}: stopped as asked; {missing} of {len(plan.instances)} nodes are not made yet"
    lines = [f"\nrun {plan.run}: done"]
    for arm in plan.arms:
        lines += _figures(plan, arm) + _sample(plan, arm)
        model = plan.folder / arm / "conversion"
        if model.exists():
            lines.append(f"  model:  {model}")
    lines.append(f"  report: {plan.folder / 'report.html'}")
    return "\n".join(lines)


def _evaluations(plan: Plan, arm: str, suite: str) -> list[manifest.Manifest]:
    mine = [
        i for i in plan.instances.values() if i.node == "evaluation" and arm in i.arms and i.scope.endswith(f"/{suite}")
    ]
    found = []
    for instance in sorted(mine, key=lambda i: int(i.scope.partition("/")[0])):
        try:
            found.append(manifest.read(plan.store / instance.node / instance.digest))
        except StoreError:
            continue
    return found


def _figures(plan: Plan, arm: str) -> list[str]:
    found = _evaluations(plan, arm, "heldout")
    if not found:
        return []
    own = found[-1].info["sources"]
    baselines: dict[str, Any] = {}
    for instance in plan.instances.values():
        if instance.node == "evaluation.baselines" and arm in instance.arms:
            baselines = dict(manifest.read(plan.store / instance.node / instance.digest).info)
    lines = [f"  {arm}: held-out bits per byte"]
    for source, figures in sorted(own.items()):
        others = _baseline_text(baselines, source)
        lines.append(f"    {source:16} {figures['bits_per_byte']:.3f}{others}")
    return lines


def _baseline_text(baselines: dict[str, Any], source: str) -> str:
    parts = []
    for name, figures in baselines.get("baselines", {}).items():
        if source in figures["sources"]:
            parts.append(f"{name} {figures['sources'][source]['bits_per_byte']:.3f}")
    return f"   ({', '.join(sorted(parts, reverse=True))})" if parts else ""


def _sample(plan: Plan, arm: str) -> list[str]:
    found = _evaluations(plan, arm, "samples")
    if not found or not found[-1].info.get("samples"):
        return []
    sample = found[-1].info["samples"][0]
    shown = " ".join(f"{sample['prompt']}>>>{sample['text']}".split())
    return [f"  a sample (the model writes after >>>): {shown[:400]}"]
