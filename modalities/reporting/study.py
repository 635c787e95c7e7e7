"""Arms of a study side by side: which seeds belong to which arm, what each cost, and the verdicts."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from modalities.reporting.comparison import judge_arms, read_scores, seed_spread
from modalities.reporting.config import ReportingSection
from modalities.reporting.fairness import Check, read_checks, unasked
from modalities.reporting.instances import Groups, Instance, last_evaluation, pick
from modalities.reporting.training import training_flops
from modalities.reporting.trust import Trust
from modalities.reporting.verdicts import Verdict

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
    task_mean: float | None
    """Mean accuracy over trusted tasks and seeds; None without trusted tasks."""
    evaluations: tuple[str, ...]
    """Keys of the evaluations behind these figures, per seed."""
    tokens: int | None
    """Of one training; the other costs are sums over all seeds."""
    flops: float | None
    device_hours: float | None
    """Hours of training times devices (CPU: ranks) that it used."""
    cpu_seconds: float | None
    elapsed_seconds: float | None
    unasked: tuple[str, ...]
    """What differs from the baseline without having been asked for."""


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
    seed_spread: Mapping[str, Mapping[str, float]]
    """Metric -> `deviation` over seeds within arms and its `df`: what `modalities archive-seeds` collects."""


def read_study(
    variants: Mapping[str, Sequence[Instance]], *, section: ReportingSection, trust: Sequence[Trust] = ()
) -> Study:
    """Group variants into arms and compare them."""
    analysis = section.analysis
    names = split_names(list(variants))
    order = list(dict.fromkeys(arm for arm, _ in names.values()))
    if analysis.baseline in order:
        order = [analysis.baseline, *(a for a in order if a != analysis.baseline)]
    groups = {arm: {s: variants[v] for v, (a, s) in names.items() if a == arm} for arm in order}
    labels = {arm: section.variants.get(next(v for v, (a, _) in names.items() if a == arm), {}) for arm in order}
    checks = read_checks(groups, _swept(labels))
    arms = [
        _arm(
            arm,
            groups[arm],
            names=[v for v, n in names.items() if n[0] == arm],
            label=labels[arm],
            trust=trust,
            differing=unasked(checks, arm, order[0]),
        )
        for arm in order
    ]
    refused = _refusal(groups, checks)
    tables = read_scores(groups, trust) if refused is None else {}
    return Study(
        baseline=order[0],
        arms=tuple(arms),
        checks=tuple(checks),
        verdicts=tuple(judge_arms(tables, groups, section)) if len(order) > 1 else (),
        refused=refused,
        alpha=analysis.alpha,
        power=analysis.power,
        seed_spread=seed_spread(tables),
    )


def split_names(variants: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return variant -> arm and seed; a name without a seed has seed 0."""
    names = {}
    for variant in variants:
        match = _SEED.search(variant)
        arm = variant[: match.start()] if match is not None else variant
        names[variant] = (arm or "base", int(match[1]) if match is not None else 0)
    return names


def _swept(labels: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the keys that arms set to different values; one that an arm leaves alone is a value of its own."""
    keys = {key for label in labels.values() for key in label}
    return {key for key in keys if len({repr(label.get(key)) for label in labels.values()}) > 1}


def _arm(
    name: str,
    seeds: Mapping[int, Sequence[Instance]],
    *,
    names: Sequence[str],
    label: Mapping[str, Any],
    trust: Sequence[Trust],
    differing: Sequence[str],
) -> Arm:
    last = [i for own in seeds.values() if (i := last_evaluation(own, "heldout")) is not None]
    ends = [segments[-1] for own in seeds.values() if (segments := pick(own, "pretraining"))]
    training = {i.key: i for own in seeds.values() for i in pick(own, "pretraining")}.values()
    flops = [f for i in ends if (f := training_flops(i.info)) is not None]
    tokens = [i.info["tokens_seen"] for i in ends if "tokens_seen" in i.info]
    means = [t.by_arm[name] for t in trust if t.trusted and t.metric == "accuracy" and name in t.by_arm]
    return Arm(
        name=name,
        variants=tuple(names),
        seeds=tuple(seeds),
        changes={key: value for key, value in label.items() if not key.endswith("_seed")},
        bits_per_byte=tuple(float(i.info["bits_per_byte"]) for i in last),
        task_mean=sum(means) / len(means) if means else None,
        evaluations=tuple(i.key for i in last),
        tokens=int(tokens[0]) if tokens else None,
        flops=sum(flops) if flops else None,
        device_hours=_device_hours(training),
        cpu_seconds=_cost(training, "cpu_seconds"),
        elapsed_seconds=_cost(training, "elapsed_seconds"),
        unasked=tuple(differing),
    )


def _cost(instances: Iterable[Instance], name: str) -> float | None:
    values = [float(i.manifest.provenance[name]) for i in instances if name in i.manifest.provenance]
    return sum(values) if values else None


def _device_hours(instances: Iterable[Instance]) -> float | None:
    values = [
        float(i.manifest.provenance["elapsed_seconds"]) * int(i.manifest.numerics.get("world_size", 1)) / 3600
        for i in instances
        if "elapsed_seconds" in i.manifest.provenance
    ]
    return sum(values) if values else None


def _refusal(groups: Groups, checks: Sequence[Check]) -> str | None:
    held = next((c for c in checks if c.name == "held-out documents"), None)
    if held is not None and (not held.equal or any(" | " in v for v in held.values.values())):
        return "Arms were scored on different held-out documents. Their figures cannot be compared; share one held-out set."
    missing = [
        f"{a} seed {s}"
        for a, seeds in groups.items()
        for s, own in seeds.items()
        if last_evaluation(own, "heldout") is None
    ]
    return f"No held-out figures for {', '.join(missing)}." if missing else None
