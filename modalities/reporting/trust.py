"""Which tasks tell the models of this run apart: per task signal, noise, chance, and whether it gets better over training."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from modalities.reporting.scores import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trust:
    """One metric of one task over all variants. A task that is not trusted is shown, and stays out of every aggregate."""

    task: str
    metric: str
    by_arm: Mapping[str, float]
    """Arm -> mean score over seeds."""
    signal: float | None
    """Largest minus smallest mean of an arm; of a single arm, the gain over training."""
    noise: float | None
    """Deviation of late checkpoints around their trend, the median over variants: a lower bound of noise."""
    above_chance: bool | None
    """In more than half of the variants; None without a chance level."""
    monotone: bool | None
    """Whether scores follow the steps in more than half of the variants; None with fewer than four checkpoints."""
    trusted: bool | None
    """Neither of the two fails, and at least one is known; None if neither is."""


def read_trust(tasks: Mapping[str, Sequence[Task]], arms: Mapping[str, str]) -> list[Trust]:
    """Judge every task. `tasks` are the scores per variant, `arms` says to which arm a variant belongs."""
    found: dict[tuple[str, str], dict[str, Task]] = {}
    for variant, own in tasks.items():
        for task in own:
            found.setdefault((task.task, task.metric), {})[variant] = task
    return [_trust(name, metric, own, arms) for (name, metric), own in found.items()]


def _trust(name: str, metric: str, own: Mapping[str, Task], arms: Mapping[str, str]) -> Trust:
    grouped: dict[str, list[float]] = {}
    for variant, task in own.items():
        grouped.setdefault(arms[variant], []).append(task.mean)
    means = {arm: statistics.fmean(values) for arm, values in grouped.items()}
    noise = [t.noise for t in own.values() if t.noise is not None]
    gains = [t.gain for t in own.values() if t.gain is not None]
    signal = max(means.values()) - min(means.values()) if len(means) > 1 else statistics.fmean(gains) if gains else None
    above = _most([t.above_chance for t in own.values() if t.above_chance is not None])
    monotone = _most([t.trend > 0 for t in own.values() if t.trend is not None])
    known = [x for x in (above, monotone) if x is not None]
    return Trust(
        task=name,
        metric=metric,
        by_arm=means,
        signal=signal,
        noise=statistics.median(noise) if noise else None,
        above_chance=above,
        monotone=monotone,
        trusted=all(known) if known else None,
    )


def _most(values: Sequence[bool]) -> bool | None:
    return 2 * sum(values) > len(values) if values else None
