"""Verdicts against scipy's tests where these are right, and against simulations with known truth."""

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

from modalities.reporting import verdicts
from modalities.reporting.verdicts import Metric, Plan, Scores


def seeds_only(*means: list[float]) -> list[np.ndarray]:
    """Arms whose items are all alike: seed noise is all there is."""
    return [np.repeat(np.asarray(m)[:, None], 20, axis=1) for m in means]


def interval(spread: verdicts.Spread, level: float = 0.05) -> tuple[float, float]:
    half = float(verdicts.half_width(spread, level))
    return float(spread.difference) - half, float(spread.difference) + half


def test_seed_noise_alone_gives_the_two_sample_t_interval() -> None:
    a, b = [1.0, 1.2, 1.1, 0.9], [1.3, 1.5, 1.1, 1.4]
    (spread,) = verdicts.spreads(seeds_only(a, b), same_seeds=False)
    expected = stats.ttest_ind(b, a).confidence_interval(0.95)
    assert interval(spread) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert verdicts.p_value(spread) == pytest.approx(stats.ttest_ind(b, a).pvalue, rel=1e-6)


def test_unequal_variances_are_not_pooled() -> None:
    rng = np.random.default_rng(0)
    a, b = list(rng.normal(0, 0.01, 8)), list(rng.normal(0, 1.0, 8))
    (spread,) = verdicts.spreads(seeds_only(a, b), same_seeds=False)
    expected = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    assert not spread.pooled
    assert interval(spread) == pytest.approx((expected.low, expected.high), rel=1e-6)


def test_correlated_seeds_are_paired_where_there_are_enough() -> None:
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 1, 10)
    a, b = list(shared + rng.normal(0, 0.1, 10)), list(shared + 0.3 + rng.normal(0, 0.1, 10))
    (spread,) = verdicts.spreads(seeds_only(a, b), same_seeds=True)
    expected = stats.ttest_rel(b, a).confidence_interval(0.95)
    assert spread.paired
    assert interval(spread) == pytest.approx((expected.low, expected.high), rel=1e-6)
    (few,) = verdicts.spreads(seeds_only(a[:3], b[:3]), same_seeds=True)
    (other_seeds,) = verdicts.spreads(seeds_only(a, b), same_seeds=False)
    assert not few.paired
    assert not other_seeds.paired


def test_item_noise_alone_gives_the_paired_t_interval_over_items() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(0, 1, 200), rng.normal(0.1, 1, 200)
    (spread,) = verdicts.spreads([np.tile(a, (3, 1)), np.tile(b, (3, 1))], same_seeds=True)
    expected = stats.ttest_rel(b, a).confidence_interval(0.95)
    assert interval(spread) == pytest.approx((expected.low, expected.high), rel=1e-6)


def test_equivalence_is_two_one_sided_tests() -> None:
    a, b = [1.0, 1.02, 0.99, 1.01], [1.01, 1.0, 1.03, 0.99]
    (spread,) = verdicts.spreads(seeds_only(a, b), same_seeds=False)
    margin = 0.04
    above = stats.ttest_ind(np.array(b) + margin, a, alternative="greater").pvalue
    below = stats.ttest_ind(np.array(b) - margin, a, alternative="less").pvalue
    p = max(above, below)
    assert verdicts.within(spread, margin, p * 1.001)
    assert not verdicts.within(spread, margin, p * 0.999)


def test_holm_by_levels_is_holm_by_p_values() -> None:
    rng = np.random.default_rng(3)
    p = rng.random((2000, 5)) ** 4
    ours = verdicts.holm(lambda level: p <= level, alpha=0.05, hypotheses=5)
    order = np.argsort(p, axis=-1)
    ordered = np.take_along_axis(p, order, -1) <= 0.05 / np.arange(5, 0, -1)
    expected = np.zeros_like(ours)
    np.put_along_axis(expected, order, np.logical_and.accumulate(ordered, axis=-1), -1)
    assert (ours == expected).all()
    assert 0 < ours.mean() < 1


@pytest.mark.parametrize(("df", "shift"), [(2.0, 3.0), (5.5, 1.0), (30.0, 4.0)])
def test_power_is_that_of_the_noncentral_t(df: float, shift: float) -> None:
    quantile = stats.t.isf(0.025, df)
    expected = stats.nct.sf(quantile, df, shift) + stats.nct.cdf(-quantile, df, shift)
    assert verdicts.power_of(shift, quantile=quantile, df=df) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(
    ("seeds", "arms", "expected"), [(2, 2, 5.7), (3, 2, 3.07), (5, 2, 2.02), (2, 4, 3.8), (3, 4, 2.61), (5, 4, 1.88)]
)
def test_detectable_difference_in_deviations_of_a_run(seeds: int, arms: int, expected: float) -> None:
    df = arms * (seeds - 1)
    rng = np.random.default_rng(4)
    values = [rng.normal(0, 1, seeds) for _ in range(arms)]
    scale = math.sqrt(sum(v.var(ddof=1) for v in values) / arms)
    spread = verdicts.spreads(seeds_only(*[list(v / scale) for v in values]), same_seeds=False)[0]
    assert float(spread.seed_df) == df
    assert verdicts.detectable(spread, level=0.05, power=0.8) == pytest.approx(expected, rel=0.012)


def test_missing_seeds_is_an_interval_that_shrinks_with_what_is_known() -> None:
    rng = np.random.default_rng(5)

    def ask(seeds: int, margin: float) -> tuple[int | None, int | None]:
        values = [rng.normal(0, 1, seeds) for _ in range(2)]
        spread = verdicts.spreads(seeds_only(*[list(v / v.std(ddof=1)) for v in values]), same_seeds=False)[0]
        return verdicts.missing_seeds(spread, (seeds, seeds), margin=margin, num_arms=2, level=0.05, power=0.8)

    low, high = ask(3, 1.0)
    assert low is not None
    assert high is not None
    assert low < 14 < high  # the truth for a deviation of 1 is 17 seeds
    narrow = ask(40, 1.0)
    assert narrow == (0, 0)
    assert ask(3, 0.01) == (None, None)


def test_no_number_of_seeds_makes_up_for_few_items() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(0, 1, 20), rng.normal(0, 1, 20)
    (spread,) = verdicts.spreads([np.tile(a, (3, 1)), np.tile(b, (3, 1))], same_seeds=True)
    assert verdicts.missing_seeds(spread, (3, 3), margin=0.05, num_arms=2, level=0.05, power=0.8) == (None, None)


def test_linearised_values_have_the_ratio_as_mean() -> None:
    rng = np.random.default_rng(7)
    bits, sizes = rng.uniform(100, 900, (3, 40)), rng.uniform(50, 400, 40)
    values = verdicts.linearise(bits, sizes)
    assert values.mean(-1) == pytest.approx(bits.sum(-1) / sizes.sum())


# --- looks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spending", ["obrien_fleming", "pocock"])
def test_planned_looks_spend_alpha_and_no_more(spending: str) -> None:
    looks = [verdicts.look_at(n, alpha=0.05, planned=(3, 5, 8), spending=spending) for n in (3, 5, 8)]
    assert sum(look.alpha for look in looks) == pytest.approx(0.05)
    assert all(look.planned and look.alpha > 0 for look in looks)
    assert [look.number for look in looks] == [1, 2, 3]


def test_unplanned_looks_are_counted_and_named() -> None:
    beyond = verdicts.look_at(9, alpha=0.05, planned=(3, 5))
    between = verdicts.look_at(5, alpha=0.05, planned=(3, 5), taken=(4,))
    again = verdicts.look_at(5, alpha=0.05, taken=(3,))
    assert not beyond.planned
    assert not between.planned
    assert not again.planned
    assert "at 4 seeds" in between.note
    assert again.number == 2
    assert verdicts.look_at(5, alpha=0.05) == verdicts.Look(alpha=0.05, number=1, planned=True)


# --- whole studies ---------------------------------------------------------------------------------------------------


def study(*, seeds: int, effects: dict[str, float], noise: float = 0.002, **metric: object) -> list[verdicts.Verdict]:
    rng = np.random.default_rng(8)
    sizes = rng.uniform(500, 3000, 150)
    rates = rng.normal(1.5, 0.2, 150)
    arms = []
    for name, effect in effects.items():
        runs = [(rates + effect + rng.normal(0, noise) + rng.normal(0, 0.005, 150)) * sizes for _ in range(seeds)]
        arms.append(Scores(arm=name, seeds=tuple(range(seeds)), numerators=np.array(runs), denominators=sizes))
    described = {"margin": 0.01, "lower_is_better": True, "confirmatory": True} | metric
    return verdicts.judge([(Metric(name="bits_per_byte", **described), arms)], plan=Plan())  # type: ignore[arg-type]


def test_a_study_finds_what_was_planted_and_calls_the_rest_equivalent() -> None:
    found = study(seeds=5, effects={"base": 0.0, "corrupted": 0.05, "better": -0.05, "same": 0.0})
    assert [v.outcome for v in found] == ["worse", "better", "equivalent"]
    assert all(v.low is not None and v.high is not None and v.low < v.difference < v.high for v in found)


def test_higher_is_better_turns_the_verdict_around() -> None:
    found = study(seeds=5, effects={"base": 0.0, "up": 0.05}, lower_is_better=False)
    assert found[0].outcome == "better"


def test_one_seed_gives_no_verdict_but_says_what_is_known() -> None:
    plain = study(seeds=1, effects={"base": 0.0, "arm": 0.5})[0]
    archived = study(seeds=1, effects={"base": 0.0, "arm": 0.5}, archived=(0.002, 10))[0]
    late = study(seeds=1, effects={"base": 0.0, "arm": 0.5}, late_noise=0.001)[0]
    assert plain.outcome == archived.outcome == late.outcome == "no verdict"
    assert plain.low is None
    assert archived.low is not None
    assert archived.low < archived.difference
    assert "seeds vary by more" in late.notes[-1]


def test_arms_that_are_equal_to_the_bit_are_equivalent() -> None:
    values = np.full((2, 10), 3.0)
    arms = [Scores(arm=n, seeds=(1, 2), numerators=values, denominators=np.ones(10)) for n in ("a", "b")]
    metric = Metric(name="m", margin=0.1, lower_is_better=True, confirmatory=True)
    (verdict,) = verdicts.judge([(metric, arms)], plan=Plan())
    assert (verdict.outcome, verdict.p_value, verdict.detectable) == ("equivalent", 1.0, 0.0)


def test_the_order_of_seeds_does_not_matter() -> None:
    rng = np.random.default_rng(9)
    base, arm = rng.normal(0, 1, (8, 30)), rng.normal(0, 1, (8, 30))
    order = rng.permutation(8)
    metric = Metric(name="m", margin=0.1, lower_is_better=True, confirmatory=True)

    def ask(rows: np.ndarray) -> verdicts.Verdict:
        arms = [
            Scores(arm="a", seeds=tuple(range(8)), numerators=base, denominators=np.ones(30)),
            Scores(arm="b", seeds=tuple(int(r) for r in rows), numerators=arm[rows], denominators=np.ones(30)),
        ]
        return verdicts.judge([(metric, arms)], plan=Plan())[0]

    first, second = ask(np.arange(8)), ask(order)
    assert first.difference == pytest.approx(second.difference)
    assert first.high == pytest.approx(second.high)


def test_copies_of_a_question_are_no_new_questions() -> None:
    rng = np.random.default_rng(10)
    base, arm = rng.normal(0, 1, (3, 30)), rng.normal(0, 1, (3, 30))
    metric = Metric(name="m", margin=0.1, lower_is_better=True, confirmatory=True)

    def ask(copies: int) -> verdicts.Verdict:
        arms = [
            Scores(
                arm=name,
                seeds=(1, 2, 3),
                numerators=np.repeat(values, copies, axis=1),
                denominators=np.ones(30 * copies),
                clusters=tuple(np.repeat(np.arange(30), copies).tolist()),
            )
            for name, values in (("a", base), ("b", arm))
        ]
        return verdicts.judge([(metric, arms)], plan=Plan())[0]

    assert ask(4).high == pytest.approx(ask(1).high)


# --- simulation ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "verdicts.py"
    spec = importlib.util.spec_from_file_location("benchmark_verdicts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("seeds", "ratio", "arms"), [(2, 5.0, 1), (3, 0.2, 3), (5, 1.0, 1)])
def test_simulated_studies_keep_their_promise(benchmark: ModuleType, seeds: int, ratio: float, arms: int) -> None:
    """1,500 studies: three standard errors are 0.017."""
    cell = benchmark.Cell(seeds=seeds, ratio=ratio, correlation=0.0, heavy=False, arms=arms, residual=0.5)
    row = benchmark.measure(cell, 1500)
    assert row["covered"] >= 0.925
    assert row["false_verdicts"] <= 0.067
    assert row["false_equivalent"] <= 0.067
    assert row["found"] > 0.05
