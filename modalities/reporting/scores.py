"""Evaluation as the report shows it: bits per byte over training beside baselines, tasks, samples."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from modalities.reporting.instances import Instance, first, pick
from modalities.reporting.training import Curve

ALL = "all"


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
    """One metric of one task."""

    task: str
    metric: str
    step: int
    mean: float
    stderr: float | None
    chance: float | None
    num_items: int
    key: str

    @property
    def above_chance(self) -> bool | None:
        """Whether it lies two standard errors above chance; None where there is no chance level."""
        if self.chance is None or self.stderr is None:
            return None
        return self.mean - self.chance > 2 * self.stderr


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
    found = {source: float(figures["bits_per_byte"]) for source, figures in info.get("sources", {}).items()}
    if len(found) != 1 and "bits_per_byte" in info:
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
    tasks: dict[tuple[str, str], Task] = {}
    for instance in pick(instances, "evaluation"):
        for name, task in instance.info.get("tasks", {}).items() if instance.info.get("suite") == "tasks" else ():
            for metric, figures in task.get("metrics", {}).items():
                tasks[name, metric] = Task(
                    task=name,
                    metric=metric,
                    step=int(instance.info["step"]),
                    mean=float(figures["mean"]),
                    stderr=None if figures.get("stderr") is None else float(figures["stderr"]),
                    chance=None if figures.get("chance") is None else float(figures["chance"]),
                    num_items=int(figures.get("items", task.get("items", 0))),
                    key=instance.key,
                )
    return list(tasks.values())


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
