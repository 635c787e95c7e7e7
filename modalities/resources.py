"""What a Snakemake job asks of the machine or of Slurm: memory, and where a site is known, time, queue, nodes and devices.

Without a site (the local profile) a rule asks for memory alone. The names are those of Snakemake's Slurm plugin 2.8; the shape of
a request for several nodes (`mpi` without srun around the rule, tasks = nodes, no tasks per device) is the one that Slurm grants:
see docs/clusters.md.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from modalities.cluster import Queue, Request, Site, choose
from modalities.plan import Instance, Plan
from modalities.stages import NODES

STAMP = Request(label="a job that only stamps")
"""What a job needs that finds its work done: the interpreter and two nested Snakemake processes."""

Function = Callable[..., Any]


def request_of(instance: Instance, site: Site, *, threads: int, memory_mb: int) -> Request:
    """Return what the job of an instance asks for; `threads` are those of all its processes, `memory_mb` is per node."""
    nodes = num_nodes(instance)
    devices = _devices(instance, nodes) if site.devices_per_node > 0 else 0
    cpus, memory = -(-threads // nodes), memory_mb
    if devices > 0:
        share = min(1.0, devices / site.devices_per_node)
        if site.whole_nodes and NODES[instance.node].stage == "pretraining":
            share = 1.0
        cpus = max(cpus, int(site.cpus_per_node * share))
        memory = max(memory, int(site.memory_mb_per_node * share))
    return Request(
        label=instance.name,
        nodes=nodes,
        devices=devices,
        cpus=cpus,
        memory_mb=max(memory, STAMP.memory_mb),
        minutes=site.minutes_of(instance.node),
    )


def num_nodes(instance: Instance) -> int:
    """Return over how many nodes an instance runs."""
    runtime = instance.section.get("runtime") if isinstance(instance.section, Mapping) else None
    return int(runtime["nodes"]) if instance.node == "pretraining" and runtime is not None else 1


def _devices(instance: Instance, nodes: int) -> int:
    """Return how many accelerators it needs on each node; device `auto` takes those that a site has."""
    section = instance.section
    if instance.node == "pretraining" and section["numerics"]["device"] != "cpu":
        return int(section["numerics"]["world_size"]) // nodes
    if instance.node == "evaluation" and section["compute"]["device"] != "cpu":
        return 1
    return 0


def check(plan: Plan, site: Site, threads: Callable[[Instance], int]) -> None:
    """Raise `ConfigError` for the first instance that no queue of the site takes."""
    for instance in plan.instances.values():
        memory = NODES[instance.node].memory_mb
        choose(site, request_of(instance, site, threads=threads(instance), memory_mb=memory))


def for_rule(
    node: str, plan: Plan, site: Site | None, *, memory: Function, ask: Callable[[str, int], Request]
) -> dict[str, Any]:
    """Return the resources of a node's rule; `ask(work, memory_mb)` says what one of its jobs needs."""
    if site is None:
        return {"mem_mb": memory}

    def of(read: Callable[[Request, Queue], Any]) -> Function:
        def function(wildcards: Any, attempt: int) -> Any:
            request = ask(wildcards.work, memory(wildcards, attempt))
            return read(request, choose(site, request))

        return function

    found: dict[str, Any] = {
        "mem_mb": of(lambda r, q: r.memory_mb),
        "runtime": of(lambda r, q: r.minutes),
        "cpus_per_task": of(lambda r, q: r.cpus),
    }
    if site.queues[0].partition is not None:
        found["slurm_partition"] = of(lambda r, q: q.partition)
    if site.queues[0].qos is not None:
        found["qos"] = of(lambda r, q: q.qos)
    mine = [i for i in plan.instances.values() if i.node == node]
    extra = []
    if NODES[node].devices and site.devices_per_node > 0:
        found["gres"] = of(lambda r, q: f"{site.gres}:{r.devices}" if r.devices > 0 else "")
        found["tasks_per_gpu"] = 0
    if any(num_nodes(i) > 1 for i in mine):
        found["nodes"] = found["tasks"] = of(lambda r, q: r.nodes)
        found["mpi"] = of(lambda r, q: "srun" if r.nodes > 1 else "")
        extra.append("--ntasks-per-node=1")
    if NODES[node].name == "pretraining":
        extra += [f"--signal=TERM@{site.signal_seconds}", "--open-mode=append"]
    if extra:
        found["slurm_extra"] = " ".join(extra)
    return found


def stamp_request(site: Site, instance: Instance) -> Request:
    """Return what a job asks for that only stamps."""
    return dataclasses.replace(STAMP, label=instance.name, minutes=min(10, site.minutes_of(instance.node)))
