"""Evaluation as the report shows it: bits per byte over training beside baselines, tasks, samples."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from modalities.reporting.instances import Instance, first, pick
from modalities.reporting.training import Curve

ALL = "all"
LATE_POINTS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heldout:
    """Bits per byte of one variant on the held-out documents."""

    variant: str
    key: str
    step: int
    num_documents: int
    num_bytes: int
    bits_per_byte: Mapping[str, float]
    """Source -> figure at the last step; `all` for all bytes together."""
    over_training: Mapping[str, Curve]
    languages: Mapping[str, Mapping[str, Any]]
    lengths: Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One metric of one task at the last step it was run, and whether it can be trusted to tell models apart."""

    task: str
    metric: str
    step: int
    mean: float
    stderr: float | None
    chance: float | None
    num_items: int
    key: str
    noise: float | None
    """Standard deviation of the last checkpoints around their trend; None with fewer than four."""
    trend: float | None
    """Spearman's correlation with the step, positive where the metric gets better; None with fewer than four checkpoints."""
    gain: float | None
    """Better by so much than at the first step it was run, positive where the metric gets better; None with one step."""
    above_chance: bool | None
    """Whether it lies two standard errors above chance; None where there is no chance level."""
    trusted: bool | None
    """Above chance where there is a chance level, and better over training where that was seen; None where neither is known."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """A generated text."""

    source: str | None
    prompt: str
    text: str
    step: int


def read_heldout(variant: str, instances: Sequence[Instance]) -> Heldout | None:
    """Collect suite `heldout` over all steps of a variant."""
    found = [i for i in pick(instances, "evaluation") if i.info.get("suite") == "heldout"]
    if not found:
        return None
    curves: dict[str, list[tuple[float, float]]] = {}
    for instance in found:
        for source, value in bits(instance.info).items():
            curves.setdefault(source, []).append((float(instance.info["step"]), value))
    last = found[-1]
    return Heldout(
        variant=variant,
        key=last.key,
        step=int(last.info["step"]),
        num_documents=int(last.info["documents"]),
        num_bytes=int(last.info["bytes"]),
        bits_per_byte=bits(last.info),
        over_training={
            s: Curve(steps=tuple(x for x, _ in p), values=tuple(y for _, y in p)) for s, p in curves.items()
        },
        languages=last.info.get("languages", {}),
        lengths=last.info.get("lengths", {}),
    )


def bits(info: Mapping[str, Any]) -> dict[str, float]:
    """Return bits per byte by source, and of all bytes together where there are several sources."""
    measured = {source: figures.get("bits_per_byte") for source, figures in info.get("sources", {}).items()}
    found = {source: float(value) for source, value in measured.items() if value is not None}
    if len(found) != 1 and info.get("bits_per_byte") is not None:
        found = {ALL: float(info["bits_per_byte"]), **found}
    return found


def read_baselines(instances: Sequence[Instance]) -> dict[str, dict[str, float]]:
    """Return baseline -> source -> bits per byte on the same held-out text."""
    instance = first(instances, "evaluation.baselines")
    if instance is None:
        return {}
    return {name: bits(figures) for name, figures in instance.info.get("baselines", {}).items()}


def read_tasks(instances: Sequence[Instance]) -> list[Task]:
    """Return the figures of all tasks at the last step each was run."""
    runs: dict[tuple[str, str], list[tuple[Instance, Mapping[str, Any]]]] = {}
    for instance in pick(instances, "evaluation"):
        for name, task in instance.info.get("tasks", {}).items() if instance.info.get("suite") == "tasks" else ():
            for metric, figures in task.get("metrics", {}).items():
                runs.setdefault((name, metric), []).append((instance, figures))
    return [_task(name, metric, found) for (name, metric), found in runs.items()]


def _task(name: str, metric: str, runs: Sequence[tuple[Instance, Mapping[str, Any]]]) -> Task:
    last, figures = runs[-1]
    mean, stderr, chance = float(figures["mean"]), _optional(figures, "stderr"), _optional(figures, "chance")
    steps, values = [float(i.info["step"]) for i, _ in runs], [float(f["mean"]) for _, f in runs]
    above = None if chance is None or stderr is None else mean - chance > 2 * stderr
    better = -1.0 if metric == "bits_per_byte" else 1.0
    trend = _trend(steps, values, better=better)
    return Task(
        task=name,
        metric=metric,
        step=int(last.info["step"]),
        mean=mean,
        stderr=stderr,
        chance=chance,
        num_items=int(figures.get("items", 0)),
        key=last.key,
        noise=late_noise(steps, values),
        trend=trend,
        gain=better * (values[-1] - values[0]) if len(values) > 1 else None,
        above_chance=above,
        trusted=None if above is None and trend is None else above is not False and (trend is None or trend > 0),
    )


def _optional(figures: Mapping[str, Any], name: str) -> float | None:
    return None if figures.get(name) is None else float(figures[name])


def _trend(steps: Sequence[float], values: Sequence[float], *, better: float) -> float | None:
    if len(steps) < 4 or len(set(values)) < 2:
        return None
    return better * float(stats.spearmanr(steps, values).statistic)


def late_noise(steps: Sequence[float], values: Sequence[float]) -> float | None:
    """Return the deviation of late checkpoints around their trend: a lower bound, as they share seed and data order."""
    if len(steps) < 4:
        return None
    x, y = np.array(steps[-LATE_POINTS:]), np.array(values[-LATE_POINTS:])
    rest = y - np.polyval(np.polyfit(x, y, 1), x)
    return float(np.sqrt((rest**2).sum() / (len(x) - 2)))


def read_samples(instances: Sequence[Instance]) -> list[Sample]:
    """Return the texts generated at the last step that generated any."""
    found = [i for i in pick(instances, "evaluation") if i.info.get("suite") == "samples"]
    if not found:
        return []
    step = int(found[-1].info["step"])
    return [
        Sample(source=s.get("source"), prompt=str(s["prompt"]), text=str(s["text"]), step=step)
        for s in found[-1].info["samples"]
    ]
