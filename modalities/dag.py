"""What the Snakemake rules ask: inputs, stamps, logs and resources of each node, from the plan.

The head (the process a user starts) resolves the plan once and hands its path to jobs in `MODALITIES_PLAN`; a job that parses
the Snakefile again, as every Slurm job does twice, reads that file.
"""

import functools
import json
import os
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from modalities import cluster, links, resources
from modalities import config as strict
from modalities import plan as planning
from modalities.errors import ConfigError
from modalities.job import INVOCATION
from modalities.manifest import NAME
from modalities.plan import Instance, Plan
from modalities.stages import NODES
from modalities.store import Store

PLAN = "MODALITIES_PLAN"
DEFAULT_CONFIG = Path("config/demo.yaml")
WORK = r"[0-9a-f]{32}(\.[0-9]+)?"
"""Wildcard: the digest of an instance, or that and the number of a batch of its units."""

STAMP_MEMORY_MB = 500
"""What a job needs that only stamps: the interpreter, and under Slurm two nested Snakemake processes."""

Wildcards = Any


class Dag:
    """The plan as the rules see it. Cost: what resolving the plan costs, and a few file look-ups per job."""

    def __init__(self, path: Path, plan: Plan, workflow: Any = None) -> None:
        self.path = path
        self.plan = plan
        self._workflow = workflow
        self._by_place = {(i.node, i.digest): i for i in plan.instances.values()}

    def targets(self) -> list[str]:
        """Return the stamps of all instances."""
        return [str(self.plan.stamp(i.node, i.digest)) for i in self.plan.instances.values()]

    def inputs(self, node: str) -> Callable[[Wildcards], list[str]]:
        """Return the input function of a node's rule: stamps of what the job reads."""

        def function(wildcards: Wildcards) -> list[str]:
            self._until_means_all_of_it()
            instance, batch = self._split(node, wildcards.work)
            if batch is None and instance.units:
                own = [self.plan.stamp(node, f"{instance.digest}.{b}") for b in range(instance.batches)]
                return [str(p) for p in own] + [str(p) for p in self._reads(instance, None)]
            return [str(p) for p in self._reads(instance, batch)]

        return function

    def _until_means_all_of_it(self) -> None:
        """Let `--until <rule>` end with the last jobs of a rule: Snakemake would end with the first, such as its batches.

        Called while Snakemake builds its graph, before it looks at what `--until` names.
        """
        graph = getattr(self._workflow, "_dag", None)
        for node in NODES.values():
            if graph is not None and node.rule in graph.untilrules:
                graph.untilrules.discard(node.rule)
                mine = [i for i in self.plan.instances.values() if i.node == node.name]
                read = {i for instance in mine for i in instance.inputs.values()}  # a segment reads the one before
                graph.untilfiles |= {str(self.plan.stamp(i.node, i.digest)) for i in mine if i.id not in read}

    def _reads(self, instance: Instance, batch: int | None) -> list[Path]:
        found = []
        for read in (self.plan.instances[i] for i in dict.fromkeys(instance.inputs.values())):
            aligned = batch is not None and NODES[instance.node].split == "aligned" and read.units
            work = f"{read.digest}.{batch}" if aligned and read.batches == instance.batches else read.digest
            found.append(self.plan.stamp(read.node, work))
        return found

    def stamp(self, node: str) -> str:
        """Return the output pattern of a node's rule."""
        return str(self.plan.stamp(node, "{work}"))

    def log(self, node: str) -> str:
        """Return the log pattern of a node's rule."""
        return str(self.plan.folder / "logs" / node / "{work}.log")

    def benchmark(self, node: str) -> str:
        """Return the benchmark pattern of a node's rule."""
        return str(self.plan.folder / "benchmarks" / node / "{work}.tsv")

    def threads(self, node: str) -> Callable[[Wildcards], int]:
        """Return the thread function of a node's rule: 1 for a job that only stamps."""

        def function(wildcards: Wildcards) -> int:
            instance, _ = self._split(node, wildcards.work)
            return 1 if self._only_stamps(node, wildcards.work) else num_threads(instance)

        return function

    def memory(self, node: str) -> Callable[[Wildcards, int], int]:
        """Return the memory function of a node's rule, in MB; it grows only after an attempt that ran out of it."""

        def function(wildcards: Wildcards, attempt: int) -> int:
            if self._only_stamps(node, wildcards.work):
                return STAMP_MEMORY_MB
            return NODES[node].memory_mb * (attempt if attempt > 1 and self._ran_out(node, wildcards.work) else 1)

        return function

    def _ran_out(self, node: str, work: str) -> bool:
        """Say whether an earlier attempt ran out of memory, or was killed without a word, as the kernel does it then."""
        instance, batch = self._split(node, work)
        keys = [instance.digest] if batch is None else [instance.units[u] for u in instance.batch(batch)]
        for folder in (Store(self.plan.store).work(node, key) for key in keys):
            try:
                outcome = json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                if any(folder.glob("attempt-*")):
                    return True
                continue
            if outcome["class"] == "out_of_memory":
                return True
        return False

    def resources(self, node: str) -> dict[str, Any]:
        """Return the resources of a node's rule: memory here; on a cluster also time, queue, nodes and devices."""

        def ask(work: str, memory_mb: int) -> cluster.Request:
            assert self.site is not None
            instance, _ = self._split(node, work)
            if self._only_stamps(node, work):
                return resources.stamp_request(self.site, instance)
            return resources.request_of(instance, self.site, threads=num_threads(instance), memory_mb=memory_mb)

        return resources.for_rule(node, self.plan, self.site, memory=self.memory(node), ask=ask)

    def local_rules(self) -> list[str]:
        """Return the rules whose jobs run beside Snakemake when others go to a cluster."""
        nodes = self.site.local if self.site is not None else ()
        for name in nodes:
            if name not in NODES:
                raise ConfigError(
                    f"{os.environ[cluster.SITE]}: local: expected plan nodes ({', '.join(NODES)}), got {name!r}"
                )
        return [NODES[name].rule for name in nodes]

    @functools.cached_property
    def site(self) -> cluster.Site | None:
        """The cluster that jobs go to, or None on one machine."""
        path = os.environ.get(cluster.SITE)
        return cluster.load_site(Path(path).parent) if path is not None else None

    @functools.cached_property
    def _stamp_only(self) -> dict[tuple[str, str], bool]:
        return {}

    def _only_stamps(self, node: str, work: str) -> bool:
        """Say whether a job will find everything there. A guess for scheduling; the job itself looks closer."""
        if (node, work) not in self._stamp_only:
            instance, batch = self._split(node, work)
            self._stamp_only[node, work] = _is_there(Store(self.plan.store), instance, batch)
        return self._stamp_only[node, work]

    def _split(self, node: str, work: str) -> tuple[Instance, int | None]:
        digest, _, batch = work.partition(".")
        return self._by_place[node, digest], int(batch) if batch else None

    def discard_forced(self, workflow: Any) -> None:
        """Move what `--forcerun`, `--force` or `--forceall` names to the trash, so that its jobs compute it again.

        Called when jobs are about to start, never in a dry run; only jobs that this invocation will run are looked at.
        """
        settings = workflow.dag_settings
        store = Store(self.plan.store)
        names = set(settings.forcerun) | (set(settings.targets) if settings.forcetargets else set())
        for job in list(workflow.dag.needrun_jobs()):
            node = next((n for n in NODES if NODES[n].rule == job.rule.name), None)
            forced = settings.forceall or job.rule.name in names or any(str(o) in names for o in job.output)
            if node is None or not forced:
                continue
            instance, batch = self._split(node, job.wildcards.work)
            if batch is None:
                store.discard(node, instance.digest)
            else:
                for index in instance.batch(batch):
                    store.discard(node, instance.units[index], unit=True)


def num_threads(instance: Instance) -> int:
    """Return the CPU threads that a job of an instance uses."""
    numerics = instance.section.get("numerics") if isinstance(instance.section, Mapping) else None
    if instance.node == "pretraining" and numerics is not None:
        return int(numerics["world_size"]) * int(numerics["threads_per_rank"])
    if instance.node == "pretraining.benchmarking":
        setting = instance.section["setting"]
        return int(setting["world_size"]) * int(setting["threads_per_rank"])
    if instance.node == "evaluation":
        return int(instance.section["compute"]["threads"])
    return 1


def open_dag(workflow: Any) -> Dag:
    """Resolve the plan (head) or read it (job). `workflow` is Snakemake's."""
    known = os.environ.get(PLAN)
    if known is not None and not workflow.is_main_process:
        path = Path(known)
        return Dag(path, planning.read(path))
    _refuse_profile()
    settings = workflow.config_settings
    paths = [Path(os.path.relpath(p)) for p in settings.configfiles] or [DEFAULT_CONFIG]
    plan = planning.resolve(planning.load_tree(paths, strict.from_python(dict(settings.config), "--config")))
    path = planning.write(plan)
    os.environ[PLAN] = str(path)
    os.environ[INVOCATION] = uuid.uuid4().hex
    _find_site(plan)
    return Dag(path, plan, workflow)


def _find_site(plan: Plan) -> None:
    """Note the site of the profile for jobs, and refuse what its queues do not take."""
    os.environ.pop(cluster.SITE, None)
    profile = cluster.profile_of(sys.argv)
    site = None if profile is None else cluster.load_site(profile)
    if profile is not None and site is not None:
        os.environ[cluster.SITE] = str(profile / cluster.NAME)
        for name, value in site.environment.items():
            os.environ.setdefault(name, value)
        resources.check(plan, site, num_threads)


def prepare(plan: Plan) -> None:
    """Remove stamps whose instance or units are gone, and refresh the links of what is there."""
    store = Store(plan.store)
    for instance in plan.instances.values():
        stamp = plan.stamp(instance.node, instance.digest)
        if not stamp.exists():
            continue
        if store.find(instance.node, instance.digest) is None:
            stamp.unlink()
        else:
            links.update(plan, instance)
        for batch in range(instance.batches):
            part = plan.stamp(instance.node, f"{instance.digest}.{batch}")
            if part.exists() and not _is_there(store, instance, batch):
                part.unlink()


def _is_there(store: Store, instance: Instance, batch: int | None) -> bool:
    """Say whether the manifests of an instance, or of the units of a batch, exist."""
    if batch is None:
        return (store.folder(instance.node, instance.digest) / NAME).exists()
    return all(
        (store.folder(instance.node, instance.units[u], unit=True) / NAME).exists() for u in instance.batch(batch)
    )


def _refuse_profile() -> None:
    """`--profile` beside the default profile, which Snakemake finds by itself, loses without a word."""
    if any(arg == "--profile" or arg.startswith("--profile=") for arg in sys.argv):
        raise ConfigError(
            "expected --workflow-profile, got --profile, which the default profile would silently override; "
            "write --workflow-profile profiles/<name>"
        )
