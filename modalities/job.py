"""One job: make an instance, or a batch of units, of a plan; write its stamp.

What is there, valid and made from the same upstream contents is only stamped. Otherwise the job takes the lease, lets the
node's function write into an attempt folder, and publishes it. A job may be killed at any point and started again.
"""

import dataclasses
import importlib
import json
import logging
import os
import platform
import resource
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from modalities import config as strict
from modalities import links, manifest, stages
from modalities.errors import ModalitiesError, StoreError
from modalities.manifest import Manifest
from modalities.plan import Instance, Plan, packages
from modalities.stages import NODES, Node
from modalities.store import Lease, Store, list_files, sync_tree, take_lease
from modalities.work import Progress, Result, Upstream, Work, digest_of, sum_counts

log = logging.getLogger("modalities")
PERMANENT = ("bad_input", "diverged", "bug")
"""Outcomes that another attempt in the same run cannot change."""
POLL_SECONDS = 0.5


def run_batch(plan: Plan, instance: Instance, batch: int) -> None:
    """Make the units of one batch and stamp it."""
    contents = [make_unit(plan, instance, index).content for index in instance.batch(batch)]
    _stamp(plan, instance.node, f"{instance.digest}.{batch}", digest_of(contents))


def run_instance(plan: Plan, instance: Instance) -> Manifest:
    """Make an instance (for a sharded one: whatever units are missing, then the gather), link and stamp it."""
    node = NODES[instance.node]
    units = tuple(_unit_upstream(plan, instance, i) for i in range(len(instance.units)))
    inputs = {role: upstream(plan, plan.instances[i]) for role, i in instance.inputs.items()}
    read = _references(plan, instance.inputs, inputs)
    section: Any = strict.build(node.section, instance.section)

    def compute(work: "_Attempt") -> Result:
        whole = Work(
            node=node.name,
            key=instance.digest,
            label=instance.name,
            section=section,
            inputs=inputs,
            folder=work.folder,
            own_units=units,
            previous=work.previous,
            state=work.state,
            cache=_store(plan).cache,
            progress=Progress(work.progress, instance.name),
        )
        if not node.sharded:
            return _call(node, "run", whole)
        return _gather(node, whole)

    item = _Item(
        node=node,
        key=instance.digest,
        label=instance.name,
        section=section,
        upstream=read,
        units=instance.units,
        unit=False,
    )
    made = _make(_store(plan), item, [u.content for u in units], compute)
    _check_flow(node, made, inputs)
    links.update(plan, instance)
    _stamp(plan, instance.node, instance.digest, made.content)
    return made


def _gather(node: Node, work: Work[Any]) -> Result:
    counts, dropped = sum_counts(tuple(u.manifest for u in work.own_units))
    module = importlib.import_module(node.module)
    own = module.gather(work) if hasattr(module, "gather") else Result(content="")
    contents = [u.content for u in work.own_units]
    return dataclasses.replace(
        own,
        content=digest_of(contents, own.content),
        counts=counts | dict(own.counts),
        dropped=dropped | dict(own.dropped),
    )


def make_unit(plan: Plan, instance: Instance, index: int) -> Manifest:
    """Make one unit, or return it if it is there and was made from what is there now."""
    node = NODES[instance.node]
    key = instance.units[index]
    data = instance.unit_data[index] if instance.unit_data else {}
    ids, inputs = unit_inputs(plan, instance, index)
    read = {r: {"node": ids[r], "key": u.manifest.key, "content": u.content} for r, u in inputs.items()}
    section: Any = strict.build(node.unit_section or node.section, instance.unit_section or instance.section)
    label = f"{instance.name} unit {index + 1} of {len(instance.units)}" + (
        f": {data['name']}" if "name" in data else ""
    )

    def compute(work: "_Attempt") -> Result:
        return _call(
            node,
            "run_unit",
            Work(
                node=node.name,
                key=key,
                label=label,
                section=section,
                inputs=inputs,
                folder=work.folder,
                unit=data,
                previous=work.previous,
                state=work.state,
                cache=_store(plan).cache,
                progress=Progress(work.progress, label),
            ),
        )

    item = _Item(node=node, key=key, label=label, section=section, upstream=read, units=(), unit=True)
    return _make(_store(plan), item, [], compute)


# --- making one thing ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Item:
    node: Node
    key: str
    label: str
    section: Any
    upstream: Mapping[str, Mapping[str, str]]
    units: tuple[str, ...]
    unit: bool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Attempt:
    folder: Path
    previous: tuple[Path, ...]
    state: Path
    progress: Path


def _make(store: Store, item: _Item, unit_contents: list[str], compute: Callable[[_Attempt], Result]) -> Manifest:
    """Return the finished thing, making it if needed; wait for another live owner."""
    name, work = item.node.name, store.work(item.node.name, item.key)
    told = False
    while True:
        found = _valid(store, item, unit_contents)
        if found is not None:
            log.info("%s: there already (%s)", item.label, item.key[:12])
            return found
        lease = take_lease(work)
        if isinstance(lease, Lease):
            break
        if not told:
            log.info("%s: waiting for process %s on %s, which is making it", item.label, lease["pid"], lease["host"])
            told = True
        time.sleep(POLL_SECONDS)
    try:
        found = _valid(store, item, unit_contents)
        if found is None:
            _refuse_permanent(work, item.label)
            if store.discard(name, item.key, unit=item.unit):
                log.info(
                    "%s: what was there is damaged or was made from other contents; it goes to the trash", item.label
                )
            found = _compute(store, item, unit_contents, lease, compute)
        store.finish_work(name, item.key)
    finally:
        lease.release()
    return found


def _valid(store: Store, item: _Item, unit_contents: list[str]) -> Manifest | None:
    """Return what is there if it was made from the upstream contents (and units) that are there now."""
    found = store.find(item.node.name, item.key, unit=item.unit)
    if found is None:
        return None
    same = {r: dict(v) for r, v in found.upstream.items()} == {r: dict(v) for r, v in item.upstream.items()}
    return found if same and list(found.info.get("unit_contents", [])) == unit_contents else None


def _compute(
    store: Store, item: _Item, unit_contents: list[str], lease: Lease, compute: Callable[[_Attempt], Result]
) -> Manifest:
    started, cpu = time.time(), _cpu_seconds()
    for stale in lease.previous[1:]:
        shutil.rmtree(stale, ignore_errors=True)
    attempt = _Attempt(
        folder=lease.attempt,
        previous=lease.previous[:1],
        state=lease.work / "state",
        progress=lease.work / "progress.json",
    )
    attempt.folder.mkdir()
    attempt.state.mkdir(exist_ok=True)
    log.info("%s: start (%s, attempt %d)", item.label, item.key[:12], lease.number)
    try:
        result = compute(attempt)
    except BaseException as error:
        _write_outcome(lease.work, error)
        raise
    info = dict(result.info) | ({"unit_contents": unit_contents} if unit_contents else {})
    elapsed = time.time() - started
    made = Manifest(
        node=item.node.name,
        key=item.key,
        label=item.label,
        version=stages.version(item.node.name),
        section=strict.select(item.section, "result"),
        upstream=item.upstream,
        content=result.content,
        counts=result.counts,
        dropped=result.dropped,
        info=info,
        numerics=strict.select(item.section, "numerics") | dict(result.numerics),
        packages=packages(item.node.name),
        files=list_files(attempt.folder),
        units=item.units,
        provenance={
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(started)),
            "elapsed_seconds": round(elapsed, 3),
            "cpu_seconds": round(_cpu_seconds() - cpu, 3),
            "peak_memory_bytes": _peak_bytes(),
            "host": platform.node(),
            "python": platform.python_version(),
            "attempt": lease.number,
        },
    )
    made.check_counts()
    sync_tree(attempt.folder)
    manifest.write(attempt.folder, made)
    lease.check()
    store.publish(item.node.name, item.key, attempt.folder, unit=item.unit)
    log.info("%s: done in %.1f s%s", item.label, elapsed, _summary(made))
    return made


def _call(node: Node, function: str, work: Work[Any]) -> Result:
    module = importlib.import_module(node.module)
    result: Result = getattr(module, function)(work)
    return result


def _summary(made: Manifest) -> str:
    counts = ", ".join(f"{name} {number:,}" for name, number in sorted(made.counts.items()))
    return f" ({counts})" if counts else ""


def _cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _peak_bytes() -> int:
    scale = 1 if platform.system() == "Darwin" else 1024
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * scale


# --- what is read ----------------------------------------------------------------------------------------------------


def _store(plan: Plan) -> Store:
    return Store(plan.store)


def upstream(plan: Plan, instance: Instance) -> Upstream:
    store = _store(plan)
    found = store.find(instance.node, instance.digest)
    if found is None:
        raise StoreError(
            f"{instance.name}: expected {store.folder(instance.node, instance.digest)}, which is missing or damaged; "
            f"run `modalities {NODES[instance.node].stage}` first, or the whole run"
        )
    units = tuple(
        Upstream(folder=(place := store.folder(instance.node, key, unit=True)), manifest=manifest.read(place))
        for key in instance.units
    )
    return Upstream(folder=store.folder(instance.node, instance.digest), manifest=found, units=units)


def _unit_upstream(plan: Plan, instance: Instance, index: int) -> Upstream:
    """Return one of an instance's own units, making it if it is missing or stale."""
    made = make_unit(plan, instance, index)
    return Upstream(folder=_store(plan).folder(instance.node, made.key, unit=True), manifest=made)


def unit_inputs(plan: Plan, instance: Instance, index: int) -> tuple[dict[str, str], dict[str, Upstream]]:
    """Return, by role, the node and the unit or instance that a unit reads."""
    store = _store(plan)
    nodes: dict[str, str] = {}
    inputs: dict[str, Upstream] = {}
    for role, read, position in _unit_reads(plan, instance, index):
        nodes[role] = read.node
        if position is None:
            inputs[role] = upstream(plan, read)
            continue
        key = read.units[position]
        found = store.find(read.node, key, unit=True)
        if found is None:
            raise StoreError(
                f"{read.name}: unit {key} is missing or damaged; run `modalities {NODES[read.node].stage}` first"
            )
        inputs[role] = Upstream(folder=store.folder(read.node, key, unit=True), manifest=found)
    return nodes, inputs


def _unit_reads(plan: Plan, instance: Instance, index: int) -> list[tuple[str, Instance, int | None]]:
    reads = [(role, plan.instances[i]) for role, i in sorted(instance.inputs.items())]
    if NODES[instance.node].split == "concatenated":
        for role, read in reads:
            if index < len(read.units):
                return [(role.partition(":")[0], read, index)]
            index -= len(read.units)
        raise AssertionError("more units than inputs")
    return [(role, read, index if read.units else None) for role, read in reads]


def _references(plan: Plan, ids: Mapping[str, str], inputs: Mapping[str, Upstream]) -> dict[str, dict[str, str]]:
    return {
        role: {"node": plan.instances[ids[role]].node, "key": up.manifest.key, "content": up.content}
        for role, up in inputs.items()
    }


def _check_flow(node: Node, made: Manifest, inputs: Mapping[str, Upstream]) -> None:
    """Raise `StoreError` unless a node saw just the documents that the node before it let through."""
    if node.documents_from is None:
        return
    out = inputs[node.documents_from].manifest.counts["documents_out"]
    if made.counts["documents_in"] != out:
        raise StoreError(
            f"{made.label}: expected the {out} documents of {node.documents_from}, got {made.counts['documents_in']}; "
            "this is a bug or a damaged store: run `modalities store verify`"
        )


def _stamp(plan: Plan, node: str, work: str, content: str) -> None:
    path = plan.stamp(node, work)
    path.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(path, content + "\n")


# --- outcomes --------------------------------------------------------------------------------------------------------


def classify(error: BaseException) -> str:
    """Return the outcome class of an error."""
    if isinstance(error, ModalitiesError):
        return error.outcome
    if isinstance(error, MemoryError):
        return "out_of_memory"
    if isinstance(error, OSError):
        return "node_failure"
    return "interrupted" if isinstance(error, (KeyboardInterrupt, SystemExit)) else "bug"


def _write_outcome(work: Path, error: BaseException) -> None:
    outcome = {
        "class": classify(error),
        "message": f"{error}" or type(error).__name__,
        "run": os.environ.get(INVOCATION),
    }
    manifest.write_json(work / "outcome.json", outcome)


INVOCATION = "MODALITIES_INVOCATION"
"""Set by the head for its jobs: attempts of one invocation share it."""


def _refuse_permanent(work: Path, label: str) -> None:
    try:
        outcome = json.loads((work / "outcome.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if outcome["run"] is not None and outcome["run"] == os.environ.get(INVOCATION) and outcome["class"] in PERMANENT:
        raise StoreError(f"{label}: an earlier attempt of this run failed for good: {outcome['message']}")
