"""The plan: every instance and unit of a run with its digest, resolved once and read by all jobs.

A digest is the hash of (node, stage version, versions of result packages, result keys, digests of what is read; for
ingestion the identities of the input files). A unit's key is the same over the unit it is aligned with, so a new input file
means one new unit. Both are known before anything runs.

Cost: 24 arms over two sources in under a second; 10,000 units in a few seconds. Imports nothing heavy.
"""

import dataclasses
import functools
import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from modalities import config as strict
from modalities import stages, study
from modalities.config import Tree
from modalities.errors import ConfigError, StoreError
from modalities.ingestion import inputs as ingestion_inputs
from modalities.manifest import write_json
from modalities.reporting import config as reporting
from modalities.stages import NODES, RunConfig, Spec
from modalities.store import Store
from modalities.work import digest_of

FORMAT = 1
PLANS = Path("results/plans")
RUNS = Path("results/runs")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """One node with its digest: what it reads, what it depends on, which arms use it."""

    node: str
    scope: str
    digest: str
    section: Any
    """Every key the node reads, of all kinds, as JSON."""
    unit_section: Any
    inputs: Mapping[str, str]
    """Role -> id of an instance."""
    units: tuple[str, ...] = ()
    unit_data: tuple[Mapping[str, Any], ...] = ()
    """For ingestion and packing: what is particular to each unit."""
    batches: int = 0
    arms: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Key in the plan."""
        return f"{self.node}/{self.digest}"

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.node}({self.scope})" if self.scope else self.node

    def batch(self, number: int) -> range:
        """Return the indexes of the units of a batch."""
        return range(number, len(self.units), self.batches)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All instances of a run, in an order in which each comes after what it reads."""

    run: str
    store: Path
    instances: Mapping[str, Instance]
    arms: Mapping[str, Mapping[str, Any]]
    """Arm -> what sets it apart."""
    totals: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Per arm: parameters, tokens, flops."""

    @property
    def folder(self) -> Path:
        """Folder of the run, for people, stamps and logs."""
        return RUNS / self.run

    def stamp(self, node: str, work: str) -> Path:
        """Return the stamp of an instance (`<digest>`) or of a batch of its units (`<digest>.<number>`)."""
        return self.folder / ".stamps" / node / work

    def find(self, node: str, digest: str) -> Instance:
        """Return an instance; the digest may be shortened to what is unique."""
        found = [i for i in self.instances.values() if i.node == node and i.digest.startswith(digest)]
        if len(found) != 1:
            raise StoreError(f"{node}/{digest}: expected one such instance in the plan of {self.run}, got {len(found)}")
        return found[0]


# --- resolving -------------------------------------------------------------------------------------------------------


def resolve(tree: Tree, root: Path = Path()) -> Plan:
    """Resolve a config tree into a plan. Reads the names, sizes and (cached) hashes of input files; writes only that cache."""
    arms = study.arms(tree)
    base = arms[0].config
    builder = _Builder(base, root)
    for arm in arms:
        builder.add(arm)
    if len(arms) > 1:
        _check_sweep(arms, builder.by_arm, tree)
    builder.add_report(arms)
    totals = {arm.name: _totals(arm.config) for arm in arms}
    labels = {arm.name: dict(arm.labels) for arm in arms}
    return Plan(run=base.run, store=base.runtime.store, instances=builder.instances, arms=labels, totals=totals)


class _Builder:
    """Collects instances arm by arm; equal digests are one instance."""

    def __init__(self, base: RunConfig, root: Path) -> None:
        self.base = base
        self.root = root
        self.instances: dict[str, Instance] = {}
        self.by_arm: dict[str, dict[tuple[str, str], str]] = {}
        self.shared: dict[tuple[str, str], str] = {}
        self._files: dict[str, list[dict[str, Any]]] = {}

    def add(self, arm: study.Arm) -> None:
        ids: dict[tuple[str, str], str] = {}
        for spec in stages.expand(arm.config):
            place = (spec.node, spec.scope)
            if spec.shared and place in self.shared:
                ids[place] = self.shared[place]
                self._use(ids[place], arm.name)
                continue
            inputs = {role: ids[read] for role, read in spec.inputs.items()}
            ids[place] = self._put(self._instance(arm.config, spec, inputs), arm.name)
            if spec.shared:
                self.shared[place] = ids[place]
        self.by_arm[arm.name] = ids

    def add_report(self, arms: list[study.Arm]) -> None:
        variants = {arm.name: dict(arm.labels) for arm in arms}
        text = yaml.safe_dump(resolved(self.base, kinds=("result",)), sort_keys=False, allow_unicode=True)
        section = reporting.section(
            self.base.reporting, self.base.analysis, run=self.base.run, config_yaml=text, variants=variants
        )
        inputs = {f"{arm}/{self.instances[i].name}": i for arm, ids in self.by_arm.items() for i in ids.values()}
        spec = Spec(node="reporting", scope="", section=section, inputs={})
        instance = self._instance(self.base, spec, inputs)
        for arm in arms:
            self._put(instance, arm.name)

    def _put(self, instance: Instance, arm: str) -> str:
        self.instances.setdefault(instance.id, instance)
        self._use(instance.id, arm)
        return instance.id

    def _use(self, instance: str, arm: str) -> None:
        known = self.instances[instance]
        if arm not in known.arms:
            self.instances[instance] = dataclasses.replace(known, arms=(*known.arms, arm))

    def _instance(self, run: RunConfig, spec: Spec, inputs: Mapping[str, str]) -> Instance:
        node = NODES[spec.node]
        unit_section = spec.unit_section if spec.unit_section is not None else spec.section
        head = [spec.node, stages.version(spec.node), packages(spec.node)]
        digests = {role: self.instances[i].digest for role, i in sorted(inputs.items())}
        units: list[str] = []
        data: list[Mapping[str, Any]] = []
        identities: list[Any] = []
        if node.split == "files":
            data = list(self._input_files(run, spec.scope))
            identities = [{k: v for k, v in d.items() if k != "path"} for d in data]
            units = [digest_of(*head, strict.select(unit_section, "result"), identity) for identity in identities]
        elif node.sharded:
            whole = strict.select(unit_section, "result")
            for own, source in self._aligned(node, inputs):
                data.append({} if source is None else {"source": source})
                units.append(digest_of(*head, whole, own))
        digest = digest_of(*head, strict.select(spec.section, "result"), digests, identities)
        return Instance(
            node=spec.node,
            scope=spec.scope,
            digest=digest,
            section=strict.plain(spec.section),
            unit_section=None if spec.unit_section is None else strict.plain(spec.unit_section),
            inputs=dict(inputs),
            units=tuple(units),
            unit_data=tuple(data) if any(data) else (),
            batches=min(run.runtime.batches, len(units)),
        )

    def _aligned(self, node: stages.Node, inputs: Mapping[str, str]) -> Iterator[tuple[dict[str, str], str | None]]:
        read = {role: self.instances[i] for role, i in sorted(inputs.items())}
        if node.split == "concatenated":
            for role, instance in read.items():
                for key in instance.units:
                    yield {role.partition(":")[0]: key}, role.partition(":")[2]
            return
        whole = {role: instance.digest for role, instance in read.items() if not instance.units}
        sharded = {role: instance for role, instance in read.items() if instance.units}
        for index in range(len(next(iter(sharded.values())).units)):
            yield whole | {role: instance.units[index] for role, instance in sharded.items()}, None

    def _input_files(self, run: RunConfig, source: str) -> list[dict[str, Any]]:
        known = digest_of(strict.plain(run.ingestion.sources[source]), strict.plain(run.ingestion.max_unit_bytes))
        if known not in self._files:
            cache = Store(self.root / run.runtime.store).cache
            self._files[known] = ingestion_inputs.units(run.ingestion, source, self.root, cache)
        return self._files[known]


@functools.cache
def packages(node: str) -> dict[str, str]:
    """Return the installed versions of the packages that change what a node makes."""
    return {name: importlib.metadata.version(name) for name in stages.result_packages(node)}


def resolved(run: RunConfig, kinds: tuple[strict.Kind, ...] = ("result", "numerics", "runtime")) -> dict[str, Any]:
    """Return the config with all defaults filled in; sources are always whole."""
    if len(kinds) == 3:
        plain: dict[str, Any] = strict.plain(run)
        return plain
    chosen: dict[str, Any] = strict.select(run, kinds[0])
    chosen["ingestion"]["sources"] = strict.plain(run.ingestion.sources)
    return chosen


def _totals(run: RunConfig) -> dict[str, Any]:
    from modalities.pretraining import config as pretraining

    length = run.packing.sequence_length
    vocabulary = run.tokenization.train.vocab_size if run.tokenization.tokenizer is None else None
    if vocabulary is None and run.pretraining.model.vocab_size is None:
        return {}
    steps = pretraining.total_steps(run.pretraining, length)
    tokens = steps * pretraining.batch_tokens(run.pretraining, length)
    flops = pretraining.flops_per_token(run.pretraining, vocabulary, length) * tokens
    return {
        "parameters": pretraining.parameters(run.pretraining, vocabulary),
        "tokens": tokens,
        "steps": steps,
        "flops": flops,
    }


def _check_sweep(arms: list[study.Arm], by_arm: Mapping[str, Mapping[Any, str]], tree: Tree) -> None:
    """Raise `ConfigError` for a swept key that changes no digest: no node reads it, or it changes no result."""
    paths = dict.fromkeys(path for arm in arms for path in arm.labels)
    for path in paths:
        groups: dict[str, dict[str, set[str]]] = {}
        for arm in arms:
            rest = digest_of({k: v for k, v in arm.labels.items() if k != path})
            groups.setdefault(rest, {})[digest_of(arm.labels.get(path))] = set(by_arm[arm.name].values())
        for values in groups.values():
            found = list(values.values())
            if any(a == b for i, a in enumerate(found) for b in found[:i]):
                kind = next(
                    (k for k in ("grid", "zip") if tree.at(f"ablations.{k}") and path in _names(tree, k)), "variants"
                )
                where = tree.place(f"ablations.{kind}")
                raise ConfigError(
                    f"{where}: ablations.{kind}: {path}: expected a key that changes some result, got one that no node "
                    "reads as such; remove it, or compare numerics keys in separate runs"
                )


def _names(tree: Tree, kind: str) -> tuple[str, ...]:
    found = tree.at(f"ablations.{kind}")
    return tuple(found.value) if found is not None and isinstance(found.value, dict) else ()


# --- on disk ---------------------------------------------------------------------------------------------------------


def write(plan: Plan, root: Path = Path()) -> Path:
    """Write a plan under the hash of its contents and return its path; an equal plan is left alone."""
    data = {
        "format": FORMAT,
        "run": plan.run,
        "store": plan.store.as_posix(),
        "arms": plan.arms,
        "totals": plan.totals,
        "instances": [dataclasses.asdict(i) for i in plan.instances.values()],
    }
    path = root / PLANS / f"{digest_of(data)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_json(path, data)
    return path


def read(path: Path) -> Plan:
    """Read a plan that `write` wrote."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{path}: no such plan; it is made when a run starts") from None
    if data["format"] != FORMAT:
        raise StoreError(f"{path}: expected plan format {FORMAT}, got {data['format']}; start the run again")
    instances: dict[str, Instance] = {}
    for fields in data["instances"]:
        fields |= {name: tuple(fields[name]) for name in ("units", "unit_data", "arms")}
        instance = Instance(**fields)
        instances[instance.id] = instance
    return Plan(
        run=data["run"], store=Path(data["store"]), instances=instances, arms=data["arms"], totals=data["totals"]
    )


def load_tree(paths: list[Path], overrides: Mapping[str, Any] | Tree | None = None) -> Tree:
    """Read the config of a run: one file, then overrides. Several files are an error unless they use `extends:`."""
    if len(paths) != 1:
        raise ConfigError(
            f"expected one config file, got {len(paths)} ({', '.join(map(str, paths))}); join them with `extends:`"
        )
    tree = strict.read(paths[0])
    if overrides is None:
        return tree
    over = overrides if isinstance(overrides, Tree) else strict.from_python(overrides, "--config")
    return strict.merge(tree, over)
