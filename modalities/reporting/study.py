"""Arms of a study side by side: which seeds belong to which arm, whether the comparison is fair, and the verdicts."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from modalities.documents import GroupReader
from modalities.reporting.config import DEFAULT_MARGINS, AnalysisConfig, ReportingSection
from modalities.reporting.instances import Instance, first, pick
from modalities.reporting.scores import ALL, bits, late_noise
from modalities.reporting.verdicts import Metric, Plan, Scores, Verdict, judge

_SEED = re.compile(r"(?:^|,)seed=(-?\d+)$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One setting, at one or more seeds."""

    name: str
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    changes: Mapping[str, Any]
    bits_per_byte: tuple[float, ...]
    """Of all held-out bytes together, per seed."""
    tokens: int | None
    cpu_seconds: float | None
    elapsed_seconds: float | None
    """Of training, over all seeds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that should be equal in all arms."""

    name: str
    equal: bool
    asked: bool
    """Whether the study changes a key that this depends on."""
    values: Mapping[str, str]
    """Arm -> what it is there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """What the report says of several arms."""

    baseline: str
    arms: tuple[Arm, ...]
    checks: tuple[Check, ...]
    verdicts: tuple[Verdict, ...]
    refused: str | None
    """Why there is no verdict at all."""
    alpha: float
    power: float


Groups = Mapping[str, Mapping[int, Sequence[Instance]]]
"""Arm -> seed -> instances."""


def read_study(variants: Mapping[str, Sequence[Instance]], *, section: ReportingSection) -> Study:
    """Group variants into arms and compare them."""
    analysis = section.analysis
    names = split_names(list(variants))
    order = list(dict.fromkeys(arm for arm, _ in names.values()))
    if analysis.baseline in order:
        order = [analysis.baseline, *(a for a in order if a != analysis.baseline)]
    groups = {arm: {s: variants[v] for v, (a, s) in names.items() if a == arm} for arm in order}
    labels = {arm: section.variants.get(next(v for v, (a, _) in names.items() if a == arm), {}) for arm in order}
    arms = [_arm(arm, groups[arm], {v: n for v, n in names.items() if n[0] == arm}, labels[arm]) for arm in order]
    swept = {
        key
        for label in labels.values()
        for key, value in label.items()
        if any(o.get(key) != value for o in labels.values())
    }
    checks = [check for name, read, keys in _CHECKS if (check := _check(name, read, keys, groups, swept)) is not None]
    refused = _refusal(groups, checks)
    verdicts = [] if refused is not None or len(order) < 2 else _judge(groups, analysis)
    return Study(
        baseline=order[0],
        arms=tuple(arms),
        checks=tuple(checks),
        verdicts=tuple(verdicts),
        refused=refused,
        alpha=analysis.alpha,
        power=analysis.power,
    )


def split_names(variants: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return variant -> arm and seed; a name without a seed has seed 0."""
    names = {}
    for variant in variants:
        match = _SEED.search(variant)
        arm = variant[: match.start()] if match is not None else variant
        names[variant] = (arm or "base", int(match[1]) if match is not None else 0)
    return names


def _arm(name: str, seeds: Mapping[int, Sequence[Instance]], names: Iterable[str], label: Mapping[str, Any]) -> Arm:
    last = {seed: _last(own, "heldout") for seed, own in seeds.items()}
    training = {i.key: i for own in seeds.values() for i in pick(own, "pretraining")}.values()
    tokens = [
        i.info["tokens_seen"]
        for own in seeds.values()
        for i in pick(own, "pretraining")[-1:]
        if "tokens_seen" in i.info
    ]
    changes = {key: value for key, value in label.items() if not key.endswith("_seed")}
    return Arm(
        name=name,
        variants=tuple(names),
        seeds=tuple(seeds),
        changes=changes,
        bits_per_byte=tuple(float(i.info["bits_per_byte"]) for i in last.values() if i is not None),
        tokens=int(tokens[0]) if tokens else None,
        cpu_seconds=_cost(training, "cpu_seconds"),
        elapsed_seconds=_cost(training, "elapsed_seconds"),
    )


def _cost(instances: Iterable[Instance], name: str) -> float | None:
    values = [float(i.manifest.provenance[name]) for i in instances if name in i.manifest.provenance]
    return sum(values) if values else None


def _last(instances: Sequence[Instance], suite: str) -> Instance | None:
    found = [i for i in pick(instances, "evaluation") if i.info.get("suite") == suite]
    return found[-1] if found else None


# --- fairness --------------------------------------------------------------------------------------------------------


def _content(node: str) -> Callable[[Sequence[Instance]], str | None]:
    def read(instances: Sequence[Instance]) -> str | None:
        instance = first(instances, node)
        return None if instance is None else instance.upstream.content[:12]

    return read


def _trained(*path: str) -> Callable[[Sequence[Instance]], str | None]:
    def read(instances: Sequence[Instance]) -> str | None:
        segments = pick(instances, "pretraining")
        value: Any = (
            {
                "info": segments[-1].info,
                "numerics": segments[-1].manifest.numerics,
                "section": segments[-1].manifest.section,
            }
            if segments
            else None
        )
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return None if value is None else str(value)

    return read


def _evaluated(instances: Sequence[Instance]) -> str | None:
    instance = _last(instances, "heldout")
    return None if instance is None else f"version {instance.manifest.version}, window {instance.info.get('window')}"


def _epochs(instances: Sequence[Instance]) -> str | None:
    packing = first(instances, "packing")
    shares = {} if packing is None else {n: f.get("epochs") for n, f in packing.info.get("sources", {}).items()}
    return ", ".join(f"{n} {float(e):.2f}" for n, e in shares.items() if e is not None) or None


_DATA = ("ingestion", "filtering", "deduplication", "packing", "heldout")
_CHECKS: tuple[tuple[str, Callable[[Sequence[Instance]], str | None], tuple[str, ...]], ...] = (
    ("held-out documents", _content("heldout"), ()),
    ("tokenizer", _content("tokenization.tokenizer"), ("tokenization",)),
    ("tokens seen", _trained("info", "tokens_seen"), ("pretraining.total", "pretraining.global_batch")),
    ("steps", _trained("info", "step"), ("pretraining.total", "pretraining.global_batch")),
    (
        "tokens per step",
        _trained("section", "tokens_per_step"),
        ("pretraining.global_batch", "packing.sequence_length"),
    ),
    ("parameters", _trained("info", "parameters"), ("pretraining.model", "tokenization")),
    ("schedule", _trained("section", "schedule"), ("pretraining.schedule", "pretraining.total")),
    ("learning rate", _trained("section", "learning_rate"), ("pretraining.learning_rate",)),
    ("sequence length", _trained("section", "sequence_length"), ("packing.sequence_length",)),
    ("epochs per source", _epochs, (*_DATA, "pretraining.total")),
    ("evaluation", _evaluated, ("evaluation",)),
    ("numerics", _trained("numerics"), ("pretraining.numerics",)),
)


def _check(
    name: str,
    read: Callable[[Sequence[Instance]], str | None],
    keys: tuple[str, ...],
    groups: Groups,
    swept: set[str],
) -> Check | None:
    values = {}
    for arm, seeds in groups.items():
        found = list(dict.fromkeys(v for own in seeds.values() if (v := read(own)) is not None))
        if found:
            values[arm] = " | ".join(found)
    if not values:
        return None
    asked = any(key.startswith(prefix) for key in swept for prefix in keys)
    return Check(name=name, equal=len(set(values.values())) == 1, asked=asked, values=values)


def _refusal(groups: Groups, checks: Sequence[Check]) -> str | None:
    held = next((c for c in checks if c.name == "held-out documents"), None)
    if held is not None and (not held.equal or any(" | " in v for v in held.values.values())):
        return "Arms were scored on different held-out documents. Their figures cannot be compared; share one held-out set."
    missing = [
        f"{a} seed {s}" for a, seeds in groups.items() for s, own in seeds.items() if _last(own, "heldout") is None
    ]
    return f"No held-out figures for {', '.join(missing)}." if missing else None


# --- scores ----------------------------------------------------------------------------------------------------------


def _judge(groups: Groups, analysis: AnalysisConfig) -> list[Verdict]:
    study = [_bits(groups, analysis, source) for source in _sources(groups)]
    study += [found for task in _tasks(groups) if (found := _accuracy(groups, analysis, task)) is not None]
    plan = Plan(
        alpha=analysis.alpha,
        power=analysis.power,
        looks=analysis.looks,
        looks_taken=analysis.looks_taken,
        spending=analysis.spending,
        pool=analysis.pool_seeds,
    )
    return judge(study, plan=plan)


def _sources(groups: Groups) -> list[str]:
    info = next(
        i.info for seeds in groups.values() for own in seeds.values() if (i := _last(own, "heldout")) is not None
    )
    return list(bits(info)) if len(bits(info)) > 1 else [ALL]


def _metric(name: str, analysis: AnalysisConfig, *, lower: bool, late: float | None = None) -> Metric:
    kind = name.split(":", maxsplit=1)[0]
    margin = analysis.margin.get(name, analysis.margin.get(kind, DEFAULT_MARGINS.get(kind, 0.01)))
    chosen = name in analysis.confirmatory
    return Metric(name=name, margin=margin, lower_is_better=lower, confirmatory=chosen, late_noise=late)


def _bits(groups: Groups, analysis: AnalysisConfig, source: str) -> tuple[Metric, list[Scores]]:
    name = "bits_per_byte" if source == ALL else f"bits_per_byte:{source}"
    scores = []
    for arm, seeds in groups.items():
        tables = {
            seed: _table(own, "heldout", "documents", ["id", "source", "bits", "bytes"]) for seed, own in seeds.items()
        }
        rows = [[r for r in zip(*t.values(), strict=True) if source in (ALL, r[1])] for t in tables.values()]
        numerators = np.array([[r[2] for r in one] for one in rows], np.float64)
        sizes = np.array([r[3] for r in rows[0]], np.float64)
        scores.append(Scores(arm=arm, seeds=tuple(tables), numerators=numerators, denominators=sizes))
    return _metric(name, analysis, lower=True, late=_late_noise(next(iter(groups.values())), source)), scores


def _table(instances: Sequence[Instance], suite: str, file: str, columns: list[str]) -> dict[str, list[Any]]:
    instance = _last(instances, suite)
    assert instance is not None
    reader = GroupReader(instance.upstream.folder / f"{file}.parquet")
    parts = [group.to_pydict() for group in reader.groups(columns)]
    return {name: [value for part in parts for value in part[name]] for name in columns}


def _late_noise(seeds: Mapping[int, Sequence[Instance]], source: str) -> float | None:
    own = next(iter(seeds.values()))
    found = [i.info for i in pick(own, "evaluation") if i.info.get("suite") == "heldout"]
    values = [float(i["bits_per_byte"]) if source == ALL else bits(i)[source] for i in found]
    return late_noise([float(i["step"]) for i in found], values)


def _tasks(groups: Groups) -> list[str]:
    found = [_last(own, "tasks") for seeds in groups.values() for own in seeds.values()]
    if any(i is None for i in found):
        return []
    named = [
        {n for n, t in i.info.get("tasks", {}).items() if "accuracy" in t.get("metrics", {})}
        for i in found
        if i is not None
    ]
    return sorted(set.intersection(*named)) if named else []


def _accuracy(groups: Groups, analysis: AnalysisConfig, task: str) -> tuple[Metric, list[Scores]] | None:
    scores = []
    for arm, seeds in groups.items():
        rows = []
        for own in seeds.values():
            table = _table(own, "tasks", "items", ["task", "item", "group", "accuracy"])
            rows.append(sorted(r[1:] for r in zip(*table.values(), strict=True) if r[0] == task and r[3] is not None))
        if len({tuple(r[0] for r in one) for one in rows}) != 1 or not rows[0]:
            return None
        names = [r[1] if r[1] is not None else f"item {r[0]}" for r in rows[0]]
        codes = {name: number for number, name in enumerate(dict.fromkeys(names))}
        values = np.array([[r[2] for r in one] for one in rows], np.float64)
        clusters = tuple(codes[name] for name in names)
        scores.append(
            Scores(arm=arm, seeds=tuple(seeds), numerators=values, denominators=np.ones(len(names)), clusters=clusters)
        )
    same = len({s.numerators.shape[1] for s in scores}) == 1
    return (_metric(f"accuracy:{task}", analysis, lower=False), scores) if same else None
