"""Is one arm better than another? Statistics for few seeds and many items, without input or output.

Every seed of an arm is scored on the same items (held-out documents, questions): items are crossed with seeds, not nested in
them. The difference of two arms therefore has two sources of noise. Other seeds would give other weights (variance over seed
means), and other documents would give another difference (variance over item means); noise that belongs to one seed on one
item sits in both and is subtracted once. Bootstrapping seeds and then items within seeds, or a t interval over either
alone, covers far less than it says; see docs/statistics.md for the simulations behind each choice below.

- The variance over seeds is pooled over all arms unless Bartlett's test rejects that they are equal; then the two arms at hand
  stand alone, as in Welch's test.
- Seeds are paired (same seed, same data order) only if the correlation is significant and enough degrees of freedom remain.
- The interval adds the two parts as Howe does, each with its own t quantile, where seed noise shows above the
  residual; elsewhere degrees of freedom are Satterthwaite's.
- The functions of the first half take leading axes, so that benchmarks/verdicts.py runs this very code on 10,000 studies.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from scipy import optimize, special, stats

Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Outcome = Literal["better", "worse", "equivalent", "undecided", "no verdict"]

POOLING_LEVEL = 0.01
"""Variances over seeds are pooled unless Bartlett's p falls below this."""
PAIRING_LEVEL = 0.05
"""Seeds are paired only if the F test for a correlation between arms falls below this."""
PAIRING_DF = 6
"""And only if pairing leaves this many degrees of freedom: below, choosing by the data costs more coverage than pairing gains."""
SEED_NOISE_LEVEL = 0.1
"""Howe's interval from here on: the F test of the variance over seed means against the residual."""
MOST_SEEDS = 1000
CHI_POINTS = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """A difference of two arms and the parts of its variance. All arrays have the shape of the leading axes."""

    difference: Floats
    seed_variance: Floats
    """Of the difference, from seed means; holds the residual part too."""
    seed_df: Floats
    item_variance: Floats
    """Of the difference, from item means; holds the residual part too."""
    item_df: Floats
    residual_variance: Floats
    residual_df: Floats
    paired: Bools
    pooled: Bools


def linearise(numerators: Floats, denominators: Floats) -> Floats:
    """Turn sums per seed and item into values whose plain mean over items is the ratio of the sums.

    `numerators` is [S, I] (bits), `denominators` [I] (bytes). The spread of the result over items is that of the ratio
    estimator to first order (Cochran, Sampling Techniques, chapter 6).
    """
    ratio = numerators.sum() / (denominators.sum() * len(numerators))
    values: Floats = ratio + (numerators - ratio * denominators) / denominators.mean()
    return values


def spreads(arms: Sequence[Floats], *, same_seeds: bool, pool: bool = True) -> list[Spread]:
    """Return the spread of every later arm against the first. Each arm is [..., S_k, I] with at least two seeds and items."""
    means = [arm.mean(-1) for arm in arms]
    variances = [m.var(-1, ddof=1) for m in means]
    sizes = [m.shape[-1] for m in means]
    pooled = _poolable(variances, sizes) if pool else np.zeros(variances[0].shape, np.bool_)
    within_df = float(sum(sizes) - len(sizes))
    within = sum((n - 1) * v for n, v in zip(sizes, variances, strict=True)) / within_df
    paired, interaction, interaction_df = np.zeros_like(pooled), within, within_df
    if same_seeds:
        paired, interaction, interaction_df = _pairing(np.stack(means, -2))
        paired &= pooled
    run_variance = np.where(paired, interaction, within)
    items = [_item_parts(arm) for arm in arms]
    result = []
    for k in range(1, len(arms)):
        factor = 1 / sizes[0] + 1 / sizes[k]
        own, own_df = _welch(variances[0] / sizes[0], sizes[0] - 1, variances[k] / sizes[k], sizes[k] - 1)
        item_means = items[k].means - items[0].means
        residual, residual_df = _welch(items[0].residual, items[0].df, items[k].residual, items[k].df)
        result.append(
            Spread(
                difference=means[k].mean(-1) - means[0].mean(-1),
                seed_variance=np.where(pooled, run_variance * factor, own),
                seed_df=np.where(pooled, np.where(paired, interaction_df, within_df), own_df),
                item_variance=item_means.var(-1, ddof=1) / item_means.shape[-1],
                item_df=np.full(pooled.shape, float(item_means.shape[-1] - 1)),
                residual_variance=residual,
                residual_df=residual_df,
                paired=paired,
                pooled=pooled,
            )
        )
    return result


def _poolable(variances: Sequence[Floats], sizes: Sequence[int]) -> Bools:
    """Test equal variances over seeds (Bartlett 1937). Zero variances count as the smallest positive number."""
    df = np.array([n - 1 for n in sizes], np.float64)
    stacked = np.maximum(np.stack(variances, -1), np.finfo(np.float64).tiny)
    total = df.sum()
    statistic = total * np.log((stacked * df).sum(-1) / total) - (df * np.log(stacked)).sum(-1)
    correction = 1 + ((1 / df).sum() - 1 / total) / (3 * (len(df) - 1))
    accepted: Bools = stats.chi2.sf(statistic / correction, len(df) - 1) >= POOLING_LEVEL
    return accepted


def _pairing(means: Floats) -> tuple[Bools, Floats, float]:
    """Split seed means [..., K, S] into seed and interaction; say where pairing by seed pays for its degrees of freedom."""
    num_arms, num_seeds = means.shape[-2:]
    centred = means - means.mean(-1, keepdims=True)
    shared = centred.mean(-2)
    seed_df, df = num_seeds - 1, (num_arms - 1) * (num_seeds - 1)
    seed_square = num_arms * (shared**2).sum(-1) / seed_df
    interaction = ((centred - shared[..., None, :]) ** 2).sum((-2, -1)) / df
    with np.errstate(divide="ignore", invalid="ignore"):
        correlated = stats.f.sf(seed_square / interaction, seed_df, df) < PAIRING_LEVEL
    return np.asarray(correlated) & (df >= PAIRING_DF), interaction, float(df)


@dataclasses.dataclass(frozen=True, slots=True)
class _Items:
    means: Floats
    residual: Floats
    """Variance that noise of one seed on one item gives to the mean of the arm."""
    df: int


def _item_parts(arm: Floats) -> _Items:
    num_seeds, num_items = arm.shape[-2:]
    means = arm.mean(-2)
    rest = arm - means[..., None, :]
    rest -= rest.mean(-1, keepdims=True)
    df = (num_seeds - 1) * (num_items - 1)
    return _Items(means, (rest**2).sum((-2, -1)) / (df * num_seeds * num_items), df)


def _welch(first: Floats, first_df: int, second: Floats, second_df: int) -> tuple[Floats, Floats]:
    """Add two variances of means; Welch-Satterthwaite degrees of freedom."""
    total = first + second
    parts = first**2 / first_df + second**2 / second_df
    return total, np.where(parts > 0, total**2 / np.where(parts > 0, parts, 1), float(first_df + second_df))


def variance(spread: Spread) -> Floats:
    """Return the variance of the difference: both parts, the shared residual once, never below either part."""
    return np.maximum(spread.item_variance + _seed_excess(spread), spread.seed_variance)


def _seed_excess(spread: Spread) -> Floats:
    return np.maximum(spread.seed_variance - spread.residual_variance, 0.0)


def effective_df(spread: Spread) -> Floats:
    """Return Satterthwaite's degrees of freedom of `variance`."""
    excess, item = _seed_excess(spread), spread.item_variance
    parts = excess**2 / spread.seed_df + item**2 / spread.item_df
    return np.where(parts > 0, (excess + item) ** 2 / np.where(parts > 0, parts, 1), spread.item_df)


def half_width(spread: Spread, level: float) -> Floats:
    """Return half the width of the interval that misses the truth with probability `level`, both sides together.

    Satterthwaite's interval takes a small chance variance over two or three seeds at its word, and then claims many degrees
    of freedom. Howe's (1974) gives each part its own quantile, and is used where seed noise shows at all.
    """
    excess = _seed_excess(spread)
    smooth = stats.t.isf(level / 2, effective_df(spread)) * np.sqrt(excess + spread.item_variance)
    seed_quantile, item_quantile = (stats.t.isf(level / 2, df) for df in (spread.seed_df, spread.item_df))
    howe = np.sqrt(seed_quantile**2 * excess + item_quantile**2 * spread.item_variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = spread.seed_variance / spread.residual_variance
        shows = stats.f.sf(ratio, spread.seed_df, spread.residual_df) < SEED_NOISE_LEVEL
    shows |= (spread.residual_variance == 0) & (spread.seed_variance > 0)
    return np.asarray(np.where(shows, np.maximum(smooth, howe), smooth), np.float64)


def differs(spread: Spread, level: float) -> Bools:
    """Say where the interval at `level` leaves zero out."""
    return np.abs(spread.difference) > half_width(spread, level)


def within(spread: Spread, margin: float, level: float) -> Bools:
    """Say where two one-sided tests at `level` put the difference within the margin."""
    return np.abs(spread.difference) + half_width(spread, 2 * level) < margin


def holm(rejects: Callable[[float], Bools], *, alpha: float, hypotheses: int) -> Bools:
    """Reject by Holm's procedure. `rejects(level)` gives [..., hypotheses]; what it gives may only grow with the level.

    Needs no p-values: step j is reached if at least j hypotheses are rejected at alpha / (hypotheses - j + 1).
    """
    result = rejects(alpha / hypotheses)
    alive = result.sum(-1) >= 1
    for step in range(1, hypotheses):
        now = rejects(alpha / (hypotheses - step))
        alive &= now.sum(-1) >= step + 1
        result = np.where(alive[..., None], now, result)
    return result


def decide(
    all_spreads: Sequence[Spread], margins: Sequence[float], *, alpha: float, lower_is_better: Sequence[bool]
) -> Any:
    """Return outcomes [..., hypotheses] for one family: Holm over differences, and Holm over equivalences.

    A difference that is certain but certainly within the margin is `equivalent`: it is too small to matter.
    """
    count = len(all_spreads)
    far = holm(lambda a: np.stack([differs(s, a) for s in all_spreads], -1), alpha=alpha, hypotheses=count)
    near = holm(
        lambda a: np.stack([within(s, m, a) for s, m in zip(all_spreads, margins, strict=True)], -1),
        alpha=alpha,
        hypotheses=count,
    )
    signs = np.array([-1.0 if lower else 1.0 for lower in lower_is_better])
    good = np.stack([s.difference for s in all_spreads], -1) * signs > 0
    return np.select([near, far & good, far], ["equivalent", "better", "worse"], "undecided")


# --- planned looks ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """One look at a study: how much alpha it may spend, and whether it was planned."""

    alpha: float
    number: int
    planned: bool
    note: str = ""


def look_at(
    num_seeds: int,
    *,
    alpha: float,
    planned: tuple[int, ...] = (),
    taken: tuple[int, ...] = (),
    spending: str = "obrien_fleming",
) -> Look:
    """Return what a look at `num_seeds` seeds may spend.

    Planned looks share alpha by a spending function (Lan and DeMets 1983); each spends its increment, and the sum bounds the
    error of all looks whatever their correlation, which with t intervals of few seeds is not that of the usual tables.
    `taken` are earlier looks; those not planned, and any look beyond the plan, leave this one without a promise.
    """
    earlier = sorted(n for n in set(taken) | set(planned) if n < num_seeds)
    unplanned = [n for n in earlier if n not in planned]
    number = len(earlier) + 1
    if planned and num_seeds not in planned:
        note = f"look at {num_seeds} seeds was not planned (planned: {', '.join(map(str, planned))}): exploratory"
        return Look(alpha=alpha, number=number, planned=False, note=note)
    if unplanned:
        note = (
            f"{len(unplanned)} earlier looks were not planned (at {', '.join(map(str, unplanned))} seeds): exploratory"
        )
        return Look(alpha=alpha, number=number, planned=False, note=note)
    if not planned:
        return Look(alpha=alpha, number=1, planned=True)
    before = max((n for n in planned if n < num_seeds), default=0)
    spent = [_spent(n / planned[-1], alpha, spending) for n in (before, num_seeds)]
    note = f"planned look {number} of {len(planned)}"
    return Look(alpha=spent[1] - spent[0], number=number, planned=True, note=note)


def _spent(share: float, alpha: float, spending: str) -> float:
    if share <= 0:
        return 0.0
    if spending == "pocock":
        return alpha * math.log(1 + (math.e - 1) * share)
    return float(2 * stats.norm.sf(stats.norm.isf(alpha / 2) / math.sqrt(share)))


# --- one study -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores:
    """One metric of one arm: sums per seed and item, such as bits per document, over the items' sizes, such as bytes."""

    arm: str
    seeds: tuple[int, ...]
    numerators: Floats
    """[S, I]"""
    denominators: Floats
    """[I]; ones for plain means."""
    clusters: tuple[int, ...] | None = None
    """Item -> cluster (questions about one passage); items are their own clusters if absent."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """How one metric is judged."""

    name: str
    margin: float
    lower_is_better: bool
    confirmatory: bool
    archived: tuple[float, int] | None = None
    """Standard deviation over seeds of earlier studies at this size, and its degrees of freedom."""
    late_noise: float | None = None
    """Standard deviation over late checkpoints of one run: a lower bound of the noise over seeds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What can be said of one arm against the baseline in one metric. Differences are arm minus baseline."""

    arm: str
    baseline: str
    metric: str
    outcome: Outcome
    confirmatory: bool
    margin: float
    difference: float
    low: float | None = None
    high: float | None = None
    level: float | None = None
    """Two-sided error rate of the interval."""
    p_value: float | None = None
    num_seeds: tuple[int, int] = (0, 0)
    num_items: int = 0
    seed_deviation: float | None = None
    """Standard deviation of one run's score over seeds, as used."""
    item_error: float | None = None
    """Standard error that the choice of items gives to the difference."""
    paired: bool = False
    pooled: bool = False
    df: float | None = None
    detectable: float | None = None
    """Smallest difference found with the stated power."""
    missing_seeds: tuple[int | None, int | None] | None = None
    """More seeds per arm until `detectable` is the margin, at the low and high end of what the seed variance may be.
    None: no number of seeds would do, there are too few items."""
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What was decided before looking: error rate, power, looks."""

    alpha: float = 0.05
    power: float = 0.8
    looks: tuple[int, ...] = ()
    looks_taken: tuple[int, ...] = ()
    spending: str = "obrien_fleming"
    pool: bool = True


def judge(study: Sequence[tuple[Metric, Sequence[Scores]]], *, plan: Plan) -> list[Verdict]:
    """Compare every arm with the first one of its metric. Holm's family: arms x confirmatory metrics."""
    drafts: list[tuple[Verdict, Spread | None, bool]] = []
    for metric, arms in study:
        drafts += _compare(metric, arms, plan)
    family = [i for i, (draft, spread, _) in enumerate(drafts) if spread is not None and draft.confirmatory]
    outcomes: dict[int, Outcome] = {}
    levels = {i: drafts[i][0].level or plan.alpha for i in range(len(drafts))}
    if family:
        outcomes.update(_decide(drafts, family, min(levels[i] for i in family)))
    for i, (draft, spread, _) in enumerate(drafts):
        if spread is not None and not draft.confirmatory:
            outcomes.update(_decide(drafts, [i], levels[i]))
    return [dataclasses.replace(draft, outcome=outcomes.get(i, "no verdict")) for i, (draft, _, _) in enumerate(drafts)]


def _decide(
    drafts: Sequence[tuple[Verdict, Spread | None, bool]], chosen: list[int], alpha: float
) -> dict[int, Outcome]:
    spreads_ = [s for i in chosen if (s := drafts[i][1]) is not None]
    lower = [drafts[i][2] for i in chosen]
    outcomes = decide(spreads_, [drafts[i][0].margin for i in chosen], alpha=alpha, lower_is_better=lower)
    return {i: str(o) for i, o in zip(chosen, outcomes, strict=True)}  # type: ignore[misc]


def _compare(metric: Metric, arms: Sequence[Scores], plan: Plan) -> list[tuple[Verdict, Spread | None, bool]]:
    values = [_values(arm) for arm in arms]
    same_seeds = len({tuple(sorted(arm.seeds)) for arm in arms}) == 1
    least = min(len(arm.seeds) for arm in arms)
    if least < 2 or values[0].shape[-1] < 2:
        return [(_single(metric, arms, values, k, plan), None, metric.lower_is_better) for k in range(1, len(arms))]
    look = look_at(least, alpha=plan.alpha, planned=plan.looks, taken=plan.looks_taken, spending=plan.spending)
    result: list[tuple[Verdict, Spread | None, bool]] = []
    for k, spread in enumerate(spreads(values, same_seeds=same_seeds, pool=plan.pool), 1):
        half = float(half_width(spread, look.alpha))
        difference = float(spread.difference)
        sizes = (len(arms[0].seeds), len(arms[k].seeds))
        verdict = Verdict(
            arm=arms[k].arm,
            baseline=arms[0].arm,
            metric=metric.name,
            outcome="undecided",
            confirmatory=metric.confirmatory and look.planned,
            margin=metric.margin,
            difference=difference,
            low=difference - half,
            high=difference + half,
            level=look.alpha,
            p_value=p_value(spread),
            num_seeds=sizes,
            num_items=values[0].shape[-1],
            seed_deviation=math.sqrt(float(spread.seed_variance) / (1 / sizes[0] + 1 / sizes[1])),
            item_error=math.sqrt(float(spread.item_variance)),
            paired=bool(spread.paired),
            pooled=bool(spread.pooled),
            df=float(effective_df(spread)),
            detectable=detectable(spread, level=look.alpha, power=plan.power),
            missing_seeds=missing_seeds(
                spread, sizes, margin=metric.margin, num_arms=len(arms), level=look.alpha, power=plan.power
            ),
            notes=(look.note,) if look.note else (),
        )
        result.append((verdict, spread, metric.lower_is_better))
    return result


def _values(scores: Scores) -> Floats:
    """Return linearised values [S, clusters], rows in the order of the seeds."""
    order = np.argsort(np.asarray(scores.seeds), kind="stable")
    numerators = np.asarray(scores.numerators, np.float64)[order]
    denominators = np.asarray(scores.denominators, np.float64)
    if scores.clusters is not None:
        _, index = np.unique(np.asarray(scores.clusters), return_inverse=True)
        denominators = np.bincount(index, denominators).astype(np.float64)
        numerators = np.stack([np.bincount(index, row) for row in numerators])
    return linearise(numerators, denominators)


def _single(metric: Metric, arms: Sequence[Scores], values: Sequence[Floats], k: int, plan: Plan) -> Verdict:
    """One seed gives no verdict: show the difference, and how large noise is known to be from elsewhere."""
    difference = float(values[k].mean() - values[0].mean())
    notes = ["one seed gives no verdict; run at least two, better three or five"]
    half = None
    if values[0].shape[-1] < 2:
        notes = ["one item gives no verdict; score at least two documents or questions"]
    elif metric.archived is not None:
        deviation, df = metric.archived
        items = (values[k].mean(0) - values[0].mean(0)).var(ddof=1) / values[0].shape[-1]
        seeds = deviation**2 * (1 / len(values[0]) + 1 / len(values[k]))
        half = float(stats.t.ppf(1 - plan.alpha / 2, df) * math.sqrt(seeds + items))
        notes.append(f"interval from the archived deviation over seeds, {deviation:.4g} ({df} degrees of freedom)")
    elif metric.late_noise is not None:
        notes.append(f"late checkpoints of one run vary by {metric.late_noise:.4g}; seeds vary by more")
    return Verdict(
        arm=arms[k].arm,
        baseline=arms[0].arm,
        metric=metric.name,
        outcome="no verdict",
        confirmatory=metric.confirmatory,
        margin=metric.margin,
        difference=difference,
        low=None if half is None else difference - half,
        high=None if half is None else difference + half,
        level=plan.alpha,
        num_seeds=(len(arms[0].seeds), len(arms[k].seeds)),
        num_items=values[0].shape[-1],
        notes=tuple(notes),
    )


def p_value(spread: Spread) -> float:
    """Return the level at which the interval just reaches zero, for a spread of scalars."""
    distance = abs(float(spread.difference))
    if float(variance(spread)) == 0:
        return 0.0 if distance > 0 else 1.0

    def gap(log_level: float) -> float:
        return float(half_width(spread, math.exp(log_level))) - distance

    lowest = -200.0
    if distance == 0 or gap(lowest) < 0:
        return 1.0 if distance == 0 else math.exp(lowest)
    return math.exp(optimize.brentq(gap, lowest, 0.0, xtol=1e-10))


def detectable(spread: Spread, *, level: float, power: float) -> float:
    """Return the smallest true difference that is found with `power` (noncentral t), for a spread of scalars."""
    error, half = math.sqrt(float(variance(spread))), float(half_width(spread, level))
    return _detectable(error, half / error, float(effective_df(spread)), power) if error > 0 else 0.0


def power_of(shift: float, *, quantile: float, df: float) -> float:
    """Return the chance that |T| exceeds `quantile`, T noncentral t with noncentrality `shift`.

    The mean of normal probabilities over equally likely values of the chi distribution in T's denominator: scipy's noncentral
    t gives NaN at large shifts, which few seeds need.
    """
    return _exceeds(shift, _thresholds(quantile, df))


def _thresholds(quantile: float, df: float) -> Floats:
    share = (np.arange(CHI_POINTS) + 0.5) / CHI_POINTS
    return np.asarray(quantile * np.sqrt(stats.chi2.ppf(share, df) / df), np.float64)


def _exceeds(shift: float, thresholds: Floats) -> float:
    return float((special.ndtr(shift - thresholds) + special.ndtr(-shift - thresholds)).mean())


def _detectable(error: float, quantile: float, df: float, power: float) -> float:
    thresholds, high = _thresholds(quantile, df), 1.0
    while _exceeds(high, thresholds) < power:
        high *= 2
    return error * float(optimize.brentq(lambda shift: _exceeds(shift, thresholds) - power, 0.0, high, xtol=1e-6))


def missing_seeds(
    spread: Spread, sizes: tuple[int, int], *, margin: float, num_arms: int, level: float, power: float
) -> tuple[int | None, int | None]:
    """Return how many more seeds per arm bring the detectable difference down to the margin.

    A variance from few seeds is known within a factor (3 seeds: deviation 0.52 to 6.3 times the truth), so the answer is the
    interval that its 95 % interval gives. More seeds do not shrink the part of the items.
    """
    run_variance, df = float(spread.seed_variance) / (1 / sizes[0] + 1 / sizes[1]), float(spread.seed_df)
    residual = float(spread.residual_variance) / (1 / sizes[0] + 1 / sizes[1])
    floor = max(float(spread.item_variance) - float(spread.residual_variance), 0.0)
    bounds = [max(run_variance * df / float(stats.chi2.ppf(q, df)), residual) for q in (0.975, 0.025)]

    def enough(num_seeds: int, bound: float) -> bool:
        error = math.sqrt(2 * bound / num_seeds + floor)
        seed_df = (num_arms - (1 if spread.paired else 0)) * (num_seeds - 1)
        parts = (2 * bound / num_seeds) ** 2 / seed_df + floor**2 / float(spread.item_df)
        df_then = error**4 / parts if parts > 0 else seed_df
        return error == 0 or _detectable(error, float(stats.t.ppf(1 - level / 2, df_then)), df_then, power) <= margin

    needed = [_first(lambda n, b=bound: enough(n, b)) for bound in bounds]  # type: ignore[misc]
    least = min(sizes)
    low, high = (None if n is None else max(n - least, 0) for n in needed)
    return low, high


def _first(holds: Callable[[int], bool]) -> int | None:
    """Return the least number of seeds from 2 on for which a growing condition holds."""
    if not holds(MOST_SEEDS):
        return None
    low, high = 1, MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
