"""From evaluations on disk to verdicts: scores per seed and item of every metric that all arms have."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from modalities.documents import GroupReader
from modalities.reporting.config import DEFAULT_MARGINS, AnalysisConfig, ArchivedSpread, ReportingSection
from modalities.reporting.instances import Groups, Instance, last_evaluation, pick
from modalities.reporting.scores import ALL, bits, late_noise
from modalities.reporting.trust import Trust
from modalities.reporting.verdicts import Metric, Plan, Scores, Verdict, judge

BITS, ACCURACY = "bits_per_byte", "accuracy"
SAME_SIZE = 1.1
"""Studies count as of one size if parameters and tokens differ by no more than this factor."""

Tables = Mapping[str, Sequence[Scores]]
"""Metric -> scores of every arm, the baseline first."""


def read_scores(groups: Groups, trust: Sequence[Trust]) -> dict[str, list[Scores]]:
    """Read all metrics: bits per byte of all documents and of each source, accuracy of each task and of trusted ones together."""
    found = {BITS if s == ALL else f"{BITS}:{s}": _bits(groups, s) for s in _sources(groups)}
    tasks = {task: scores for task in _tasks(groups) if (scores := _accuracy(groups, task)) is not None}
    good = [t.task for t in trust if t.trusted and t.metric == ACCURACY and t.task in tasks]
    if len(good) > 1:
        found[ACCURACY] = _together([tasks[task] for task in good])
    return found | {f"{ACCURACY}:{task}": scores for task, scores in tasks.items()}


def judge_arms(tables: Tables, groups: Groups, section: ReportingSection) -> list[Verdict]:
    """Compare every arm with the first one in every metric."""
    analysis = section.analysis
    study = [(_metric(name, groups, section), scores) for name, scores in tables.items()]
    plan = Plan(
        alpha=analysis.alpha,
        power=analysis.power,
        looks=analysis.looks,
        looks_taken=analysis.looks_taken,
        spending=analysis.spending,
        pool=analysis.pool_seeds,
    )
    return judge(study, plan=plan)


def seed_spread(tables: Tables) -> dict[str, dict[str, float]]:
    """Return, per metric, the deviation over seeds within arms and its degrees of freedom, where there are any."""
    found = {}
    for name, scores in tables.items():
        means = [s.numerators.sum(1) / s.denominators.sum() for s in scores]
        df = sum(len(m) - 1 for m in means)
        if df > 0:
            square = sum(float(((m - m.mean()) ** 2).sum()) for m in means)
            found[name] = {"deviation": float(np.sqrt(square / df)), "df": df}
    return found


def _metric(name: str, groups: Groups, section: ReportingSection) -> Metric:
    kind, _, part = name.partition(":")
    return Metric(
        name=name,
        margin=_margin(name, kind, section.analysis),
        lower_is_better=kind == BITS,
        confirmatory=name in section.analysis.confirmatory,
        archived=_archived(name, groups, section.archive),
        late_noise=_late_noise(next(iter(groups.values())), part or ALL) if kind == BITS else None,
    )


def _margin(name: str, kind: str, analysis: AnalysisConfig) -> float:
    return analysis.margin.get(name, analysis.margin.get(kind, DEFAULT_MARGINS.get(kind, 0.01)))


def _archived(name: str, groups: Groups, archive: Sequence[ArchivedSpread]) -> tuple[float, int] | None:
    """Pool what earlier studies of this size found of the variance over seeds."""
    size = _size(groups)
    same = [a for a in archive if a.metric == name and size is not None and _same_size((a.parameters, a.tokens), size)]
    df = sum(a.df for a in same)
    return None if df == 0 else (float(np.sqrt(sum(a.df * a.deviation**2 for a in same) / df)), df)


def _size(groups: Groups) -> tuple[int, int] | None:
    """Return parameters and tokens of the baseline."""
    own = next(iter(next(iter(groups.values())).values()))
    segments = pick(own, "pretraining")
    info = segments[-1].info if segments else {}
    return (info["parameters"], info["tokens_seen"]) if {"parameters", "tokens_seen"} <= set(info) else None


def _same_size(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return all(max(x, y) <= SAME_SIZE * min(x, y) for x, y in zip(a, b, strict=True))


# --- bits per byte ---------------------------------------------------------------------------------------------------


def _sources(groups: Groups) -> list[str]:
    info = next(
        i.info
        for seeds in groups.values()
        for own in seeds.values()
        if (i := last_evaluation(own, "heldout")) is not None
    )
    return list(bits(info)) if len(bits(info)) > 1 else [ALL]


def _bits(groups: Groups, source: str) -> list[Scores]:
    scores = []
    for arm, seeds in groups.items():
        tables = {
            seed: _table(own, "heldout", "documents", ["id", "source", "bits", "bytes"]) for seed, own in seeds.items()
        }
        rows = [[r for r in zip(*t.values(), strict=True) if source in (ALL, r[1])] for t in tables.values()]
        numerators = np.array([[r[2] for r in one] for one in rows], np.float64)
        sizes = np.array([r[3] for r in rows[0]], np.float64)
        scores.append(Scores(arm=arm, seeds=tuple(tables), numerators=numerators, denominators=sizes))
    return scores


def _table(instances: Sequence[Instance], suite: str, file: str, columns: list[str]) -> dict[str, list[Any]]:
    instance = last_evaluation(instances, suite)
    assert instance is not None
    reader = GroupReader(instance.upstream.folder / f"{file}.parquet")
    parts = [group.to_pydict() for group in reader.groups(columns)]
    return {name: [value for part in parts for value in part[name]] for name in columns}


def _late_noise(seeds: Mapping[int, Sequence[Instance]], source: str) -> float | None:
    own = next(iter(seeds.values()))
    found = [i.info for i in pick(own, "evaluation") if i.info.get("suite") == "heldout"]
    values = [float(i["bits_per_byte"]) if source == ALL else bits(i)[source] for i in found]
    return late_noise([float(i["step"]) for i in found], values)


# --- tasks -----------------------------------------------------------------------------------------------------------


def _tasks(groups: Groups) -> list[str]:
    found = [last_evaluation(own, "tasks") for seeds in groups.values() for own in seeds.values()]
    if any(i is None for i in found):
        return []
    named = [
        {n for n, t in i.info.get("tasks", {}).items() if ACCURACY in t.get("metrics", {})}
        for i in found
        if i is not None
    ]
    return sorted(set.intersection(*named)) if named else []


def _accuracy(groups: Groups, task: str) -> list[Scores] | None:
    """Return the scores of a task; None where arms did not answer the same questions."""
    scores = []
    for arm, seeds in groups.items():
        rows = []
        for own in seeds.values():
            table = _table(own, "tasks", "items", ["task", "item", "group", ACCURACY])
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
    return scores if len({s.numerators.shape[1] for s in scores}) == 1 else None


def _together(tasks: Sequence[Sequence[Scores]]) -> list[Scores]:
    """Join tasks into one metric in which each counts the same, however many questions it has."""
    joined = []
    for own in zip(*tasks, strict=True):
        weights = [1 / len(s.denominators) for s in own]
        clusters: list[int] = []
        for s in own:
            first = max(clusters, default=-1) + 1
            clusters += [first + c for c in s.clusters or range(len(s.denominators))]
        joined.append(
            Scores(
                arm=own[0].arm,
                seeds=own[0].seeds,
                numerators=np.concatenate([w * s.numerators for w, s in zip(weights, own, strict=True)], axis=1),
                denominators=np.concatenate([w * s.denominators for w, s in zip(weights, own, strict=True)]),
                clusters=tuple(clusters),
            )
        )
    return joined
