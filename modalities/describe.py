"""What would run and why: the texts of `modalities plan` and `modalities config`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from modalities import config as strict
from modalities import plan as planning
from modalities.config import Tree
from modalities.errors import StoreError
from modalities.manifest import Manifest
from modalities.plan import Instance, Plan
from modalities.stages import NODES, RunConfig, version
from modalities.store import Store
from modalities.study import arms


def states(plan: Plan) -> dict[str, tuple[str, str]]:
    """Return, by instance id, its state (`done` or `run`) and why."""
    store = Store(plan.store)
    found: dict[str, tuple[str, str]] = {}
    archive: dict[str, list[Manifest]] = {}
    for known in store.instances():
        archive.setdefault(known.node, []).append(known)
    made: dict[str, Manifest] = {}
    for instance in plan.instances.values():
        have = store.find(instance.node, instance.digest)
        changed = [role for role, i in instance.inputs.items() if found[i][0] == "run"]
        if have is not None and not changed and _same_inputs(plan, instance, have, made):
            made[instance.id] = have
            found[instance.id] = ("done", "there, and made from these inputs")
        elif have is not None and changed:
            found[instance.id] = ("run", f"{changed[0]} is made again; only stamped if its contents stay the same")
        elif have is not None:
            found[instance.id] = ("run", "was made from other contents than those that are there now")
        else:
            found[instance.id] = ("run", _why(plan, instance, archive.get(instance.node, []), found))
    return found


def _same_inputs(plan: Plan, instance: Instance, have: Manifest, made: Mapping[str, Manifest]) -> bool:
    return all(
        have.upstream.get(role, {}).get("content") == made[i].content
        for role, i in instance.inputs.items()
        if i in made
    )


def _why(plan: Plan, instance: Instance, known: list[Manifest], found: Mapping[str, tuple[str, str]]) -> str:
    same = [m for m in known if m.label == instance.name]
    if not same:
        return "not there yet"
    section = strict.select(strict.build(NODES[instance.node].section, instance.section), "result")
    nearest = min(same, key=lambda m: len(list(differences(m.section, section))))
    if nearest.version != version(instance.node):
        return f"stage version {nearest.version} -> {version(instance.node)}"
    keys = [f"{path} {_short(old)} -> {_short(new)}" for path, old, new in differences(nearest.section, section)]
    if keys:
        return "changed: " + "; ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
    if dict(nearest.packages) != planning.packages(instance.node):
        return "another version of " + ", ".join(planning.packages(instance.node))
    if instance.units and set(instance.units) != set(nearest.units):
        new = sum(1 for key in instance.units if key not in nearest.units)
        return f"{new} of {len(instance.units)} units are new"
    reads = [plan.instances[i].name for i in instance.inputs.values() if found[i][0] == "run"]
    return f"reads {reads[0]}, which runs" if reads else "reads other instances than before"


def _short(value: Any, most: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield `(dotted key, old value, new value)` wherever two JSON values differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*old, *new]):
            yield from differences(old.get(name), new.get(name), f"{path}.{name}" if path else str(name))
    elif old != new:
        yield path, old, new


def as_json(plan: Plan) -> str:
    """Return the plan as one JSON object."""
    found = states(plan)
    nodes = [
        {
            "node": i.node,
            "scope": i.scope,
            "digest": i.digest,
            "state": found[i.id][0],
            "why": found[i.id][1],
            "units": len(i.units),
            "arms": list(i.arms),
        }
        for i in plan.instances.values()
    ]
    return json.dumps({"run": plan.run, "arms": plan.arms, "totals": totals(plan), "nodes": nodes}, indent=1)


def as_text(plan: Plan) -> str:
    """Return the plan for people: totals, then what runs and what is there, with reasons."""
    found = states(plan)
    sums = totals(plan)
    lines = [f"run {plan.run}: {len(plan.instances)} instances, {len(plan.arms)} arm(s), store {plan.store}"]
    for arm, figures in sums["arms"].items():
        lines.append(
            f"  {arm}: {figures['parameters']:,} parameters, {figures['tokens']:,} tokens in {figures['steps']:,} steps, "
            f"{figures['flops']:.2e} FLOPs"
        )
    lines.append(
        f"  input {sums['input_bytes'] / 1e6:,.1f} MB; about {sums['store_bytes'] / 1e6:,.0f} MB and {sums['inodes']:,} inodes "
        f"in the store; training {sums['device_hours_text']}"
    )
    if sums["saved_instances"]:
        lines.append(f"  shared between arms: {_saving_text(plan, sums)}")
    lines.append("")
    width = max(len(i.name) for i in plan.instances.values())
    for instance in plan.instances.values():
        state, why = found[instance.id]
        users = f" [{len(instance.arms)} arms]" if len(plan.arms) > 1 else ""
        lines.append(f"  {state:5} {instance.name:{width}} {instance.digest[:12]}  {why}{users}")
    running = sum(state == "run" for state, _ in found.values())
    lines.append(f"\n{running} to run, {len(found) - running} there already")
    return "\n".join(lines)


def _saving_text(plan: Plan, sums: Mapping[str, Any]) -> str:
    text = f"{sums['saved_instances']} instances fewer than {len(plan.arms)} separate runs"
    if sums["saved_tokens"]:
        hours = sums["saved_device_hours"]
        measured = "" if hours is None else f" (about {hours:.2f} device-hours)"
        text += f"; {sums['saved_tokens']:,} tokens{measured} are not trained on twice"
    if sums["saved_seconds"] is not None:
        text += f"; other shared stages took {sums['saved_seconds']:,.0f} s less, as measured"
    return text


def _training_tokens(plan: Plan) -> tuple[int, int]:
    """Return tokens that are trained on, and those that separate runs would train on beside them."""
    own = saved = 0
    for instance in (i for i in plan.instances.values() if i.node == "pretraining"):
        section = instance.section
        steps = section["end_step"] - section["start_step"]
        tokens = steps * section["global_batch_sequences"] * section["sequence_length"]
        own += tokens
        saved += tokens * (len(instance.arms) - 1)
    return own, saved


def _saved_seconds(plan: Plan) -> float | None:
    """Return the time that separate runs would spend again on stages before training; None until all of it was measured."""
    store, total = Store(plan.store), 0.0
    for instance in plan.instances.values():
        if len(instance.arms) < 2 or instance.node in ("pretraining", "reporting"):
            continue
        found = store.find(instance.node, instance.digest)
        units = [store.find(instance.node, key, unit=True) for key in instance.units]
        made = [found, *units]
        if any(m is None for m in made):
            return None
        spent = sum(float(m.provenance.get("elapsed_seconds", 0.0)) for m in made if m is not None)
        total += spent * (len(instance.arms) - 1)
    return total


def totals(plan: Plan) -> dict[str, Any]:
    """Return what a run costs: parameters, tokens and FLOPs per arm; bytes, inodes and device-hours of all."""
    files = {d["name"]: d["bytes"] for i in plan.instances.values() if i.node == "ingestion" for d in i.unit_data}
    num_units = sum(len(i.units) for i in plan.instances.values())
    parameters = sum(t["parameters"] for t in plan.totals.values() if t)
    segments = sum(1 for i in plan.instances.values() if i.node == "pretraining")
    checkpoint = 12 * max((t["parameters"] for t in plan.totals.values() if t), default=0)
    tokens, saved = _training_tokens(plan)
    speed = _tokens_per_second(plan)
    hours = None if speed is None else tokens / speed / 3600
    return {
        "arms": {arm: t for arm, t in plan.totals.items() if t},
        "input_bytes": sum(files.values()),
        "store_bytes": 6 * sum(files.values()) + segments * checkpoint + 4 * parameters,
        "inodes": 3 * num_units + 8 * len(plan.instances),
        "device_hours": hours,
        "device_hours_text": "time unknown until something was trained here"
        if hours is None
        else f"about {hours:.2f} h at the {speed:,.0f} tokens/s measured here",
        "tokens": tokens,
        "saved_instances": sum(len(i.arms) - 1 for i in plan.instances.values() if i.node != "reporting"),
        "saved_tokens": saved,
        "saved_device_hours": None if speed is None else saved / speed / 3600,
        "saved_seconds": _saved_seconds(plan),
    }


def _tokens_per_second(plan: Plan) -> float | None:
    """Return the speed of the last training of the same size in this store, if any."""
    sizes = {t["parameters"] for t in plan.totals.values() if t}
    speeds = [
        (str(m.provenance.get("started")), float(m.info["tokens_per_second"]))
        for m in Store(plan.store).instances()
        if m.node == "pretraining" and m.info.get("parameters") in sizes and m.info.get("tokens_per_second")
    ]
    return max(speeds)[1] if speeds else None


# --- modalities config -----------------------------------------------------------------------------------------------


def config_text(tree: Tree) -> str:
    """Return the resolved config as YAML, each value with the place that gave it, or `default`."""
    arms(tree)  # refuses what cannot be used
    run = strict.load(RunConfig, tree)
    lines = []
    for path, value in _flat(planning.resolved(run)):
        found = tree.at(path)
        shown = (
            json.dumps(value, ensure_ascii=False)
            if not isinstance(value, str)
            else yaml.safe_dump(value).split("\n")[0]
        )
        lines.append(f"{path}: {shown}  # {_origin(tree, path) if found is None else found.key_where or found.where}")
    return "\n".join(lines)


def _origin(tree: Tree, path: str) -> str:
    """A list that is written down covers what lies below it."""
    while "." in path:
        path = path.rpartition(".")[0]
        found = tree.at(path)
        if found is not None and isinstance(found.value, list):
            return found.key_where or found.where
    return "default"


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, child in value.items():
            yield from _flat(child, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def find(store: Store, digest: str) -> Manifest:
    """Return the manifest of the one instance whose digest begins so."""
    found = [m for m in store.instances() if m.key.startswith(digest)]
    if len(found) != 1:
        raise StoreError(
            f"{digest}: expected the beginning of one digest, got {len(found)} in {store.root}; see `modalities store ls`"
        )
    return found[0]
