from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modalities.packing.order import (
    MAX_TOTAL,
    Order,
    Schedule,
    Stretch,
    permute,
    round_keys,
    whole_weights,
)

weight_lists = st.lists(st.integers(0, 1000), min_size=1, max_size=9).filter(any)


def all_of(size: int, *, seed: int = 0, source: str = "web", epoch: int = 0) -> np.ndarray:
    keys = np.tile(round_keys(data_seed=seed, source=source, epoch=epoch), (size, 1))
    return permute(np.arange(size), sizes=np.full(size, size), keys=keys)


@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_permutation_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(all_of(size, seed=seed, epoch=epoch)), np.arange(size))


def test_permutations_differ_by_seed_source_and_epoch() -> None:
    one = all_of(1000)
    for other in (all_of(1000, seed=1), all_of(1000, source="wiki"), all_of(1000, epoch=1)):
        assert (one == other).mean() < 0.01


def test_permutation_looks_random() -> None:
    """Rank correlation of image and index, and of neighbours, within 4 standard errors of none."""
    image = all_of(20_000, seed=5).astype(float)
    assert abs(np.corrcoef(image, np.arange(20_000))[0, 1]) < 4 / np.sqrt(20_000)
    assert abs(np.corrcoef(image[1:], image[:-1])[0, 1]) < 4 / np.sqrt(20_000)
    small = np.stack([all_of(6, seed=seed) for seed in range(6000)])
    for place in range(6):
        counts = np.bincount(small[:, place], minlength=6)
        assert ((counts - 1000) ** 2 / 1000).sum() < 25.7  # chi-square, 5 degrees of freedom, p = 1e-4


def test_permutation_of_a_huge_source() -> None:
    size = 3_662_109_375  # 15 T tokens in rows of 4,096
    numbers = np.concatenate([np.arange(1000), np.arange(size - 1000, size)])
    keys = np.tile(round_keys(data_seed=0, source="web", epoch=0), (len(numbers), 1))
    image = permute(numbers, sizes=np.full(len(numbers), size), keys=keys)
    assert len(np.unique(image)) == len(numbers)
    assert image.min() >= 0
    assert image.max() < size
    assert 0.4 < image.mean() / size < 0.6


@given(weight_lists)
@settings(max_examples=100, deadline=None)
def test_shares_hold_at_every_prefix(weights: list[int]) -> None:
    schedule, slots = Schedule.of(tuple(weights)), 3000
    sources, ordinals = schedule.locate(np.arange(slots))
    worst = 1.0 if sum(weight > 0 for weight in weights) <= 4 else 1.7
    assert schedule.deviation <= worst
    for source, weight in enumerate(weights):
        counts = np.cumsum(sources == source)
        exact = np.arange(1, slots + 1) * weight / sum(weights)
        assert np.abs(counts - exact).max() <= schedule.deviation + 1e-6
        assert np.array_equal(ordinals[sources == source], np.arange(counts[-1]))
        for prefix in (0, 1, 7, slots):
            assert schedule.counts(prefix)[source] == (counts[prefix - 1] if prefix > 0 else 0)


@given(weight_lists, st.integers(0, 2**50))
@settings(max_examples=50, deadline=None)
def test_far_slots_agree_with_exact_arithmetic(weights: list[int], start: int) -> None:
    scaled = tuple(weight * (MAX_TOTAL // sum(weights)) for weight in weights)
    schedule = Schedule.of(scaled)
    sources, ordinals = schedule.locate(np.arange(start, start + 20))
    before = schedule.counts(start)
    assert sum(before) == start
    for source, weight in enumerate(scaled):
        assert abs(Fraction(int(before[source])) - Fraction(start * weight, sum(scaled))) <= Fraction(17, 10)
        mine = ordinals[sources == source]
        assert np.array_equal(mine, before[source] + np.arange(len(mine)))


def test_whole_weights() -> None:
    assert whole_weights({"a": Fraction(3, 5), "b": Fraction(3, 10), "c": Fraction(1, 10)}) == {"a": 6, "b": 3, "c": 1}
    assert whole_weights({"a": Fraction(1), "b": Fraction(0)}) == {"a": 1, "b": 0}
    huge = whole_weights({"a": Fraction(1, 3), "b": Fraction(2**61 - 1, 2**61), "c": Fraction(1, 10**15)})
    assert sum(huge.values()) <= MAX_TOTAL
    assert huge["a"] / huge["b"] == pytest.approx(1 / 3, abs=1e-8)
    assert huge["c"] == 1


def test_phases_carry_ordinals_over() -> None:
    first, second = Stretch(weights=(1, 1), slots=11), Stretch(weights=(1, 3))
    order = Order(sources=("a", "b"), sizes=(100, 100), stretches=(first, second))
    sources, ordinals = order.locate(np.arange(60))
    for source in (0, 1):
        assert np.array_equal(ordinals[sources == source], np.arange((sources == source).sum()))
    assert np.array_equal(order.counts(60), np.bincount(sources))
    assert np.bincount(sources[11:]).tolist() == Schedule.of((1, 3)).counts(49).tolist()


def test_no_repeat_before_an_epoch_ends_whatever_the_phases() -> None:
    stretches = tuple(Stretch(weights=weights, slots=30) for weights in ((5, 1), (1, 5), (0, 1), (1, 1)))
    order = Order(sources=("a", "b"), sizes=(37, 23), stretches=stretches)
    sources, epochs, numbers = order.sequences(np.arange(120), data_seed=3)
    for source, size in enumerate(order.sizes):
        mine, of = numbers[sources == source], epochs[sources == source]
        assert (np.diff(of) >= 0).all()
        for epoch in range(int(of.max()) + 1):
            seen = mine[of == epoch]
            assert len(np.unique(seen)) == len(seen)
            assert epoch == of.max() or len(seen) == size


def test_random_access_equals_reading_in_order() -> None:
    stretches = (Stretch(weights=(2, 3, 5), slots=50), Stretch(weights=(1, 0, 1)))
    order = Order(sources=("a", "b", "c"), sizes=(7, 1, 1000), stretches=stretches)
    whole = np.stack(order.sequences(np.arange(300), data_seed=1))
    shuffled = np.random.default_rng(0).permutation(300)
    assert np.array_equal(np.stack(order.sequences(shuffled, data_seed=1)), whole[:, shuffled])


def test_slots_after_the_last_phase_are_refused() -> None:
    order = Order(sources=("a",), sizes=(5,), stretches=(Stretch(weights=(1,), slots=10),))
    with pytest.raises(IndexError, match="10"):
        order.locate(np.asarray([10]))


def test_golden_order() -> None:
    """A change here reorders every training: raise the version of packing."""
    order = Order(sources=("web", "wiki"), sizes=(1000, 10), stretches=(Stretch(weights=(3, 1)),))
    sources, epochs, numbers = order.sequences(np.arange(12), data_seed=42)
    assert sources.tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0]
    assert epochs.tolist() == [0] * 12
    assert numbers.tolist() == GOLDEN


GOLDEN = [283, 1, 693, 107, 152, 3, 539, 611, 699, 0, 386, 413]
