import dataclasses
import resource
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from modalities.errors import StoreError
from modalities.packing.config import PhaseConfig
from modalities.packing.reader import Prefetcher

EOD = 1


def documents(seed: int, number: int, *, low: int = 0, high: int = 40, ids: int = 60_000) -> list[list[int]]:
    """Random documents; ids are large and so all but unique."""
    random = np.random.default_rng(seed)
    return [[*random.integers(2, ids, length).tolist(), EOD] for length in random.integers(low, high, number)]


def plain_rows(parts: list[list[list[int]]], length: int) -> list[list[int]]:
    """Rows of concatenate, by slicing lists."""
    rows = []
    for part in parts:
        flat = [token for document in part for token in document]
        rows += [flat[at : at + length + 1] for at in range(0, len(flat) - 1, length)]
    return rows


def unpadded(batch: Any) -> Counter[tuple[int, ...]]:
    sizes = batch.loss_mask.sum(axis=1) + 1
    return Counter(tuple(row[:size].tolist()) for row, size in zip(batch.tokens, sizes, strict=True))


@pytest.mark.parametrize("dtype", ["<u2", "<i4"])
def test_an_epoch_reads_every_row_once(pack_documents: Callable[..., Any], dtype: str) -> None:
    ids = 60_000 if dtype == "<u2" else 2**31 - 1
    parts = [documents(seed, 30, ids=ids) for seed in range(3)]
    made = pack_documents({"web": parts}, dtype=dtype, sequence_length=16)
    rows = plain_rows(parts, 16)
    for epoch in range(2):
        batch = made.reader(data_seed=7).batch(epoch * len(rows), (epoch + 1) * len(rows))
        assert unpadded(batch) == Counter(tuple(row) for row in rows)
        assert batch.tokens.dtype == np.int32


@pytest.mark.parametrize("method", ["concatenate", "best_fit"])
def test_batches_ranks_and_random_access_agree(pack_documents: Callable[..., Any], method: str) -> None:
    sources = {"a": [documents(1, 40), documents(2, 9)], "b": [documents(3, 25)]}
    made = pack_documents(sources, sequence_length=16, method=method, weights={"a": 0.3, "b": 0.7})
    whole = made.reader().batch(0, 120)
    fresh = made.reader()
    for ranks in (1, 2, 3, 7):
        for first in (0, 60):
            parts = [fresh.batch(first, first + 60, rank=rank, ranks=ranks) for rank in range(ranks)]
            for name in ("tokens", "loss_mask", "sources", "positions", "documents"):
                joined = np.concatenate([getattr(part, name) for part in parts])
                assert np.array_equal(joined, getattr(whole, name)[first : first + 60])
    slots = np.random.default_rng(0).permutation(120)
    assert np.array_equal(fresh.read(slots).tokens, whole.tokens[slots])


@pytest.mark.parametrize("method", ["concatenate", "best_fit"])
def test_first_tokens_do_not_count_within_documents(pack_documents: Callable[..., Any], method: str) -> None:
    made = pack_documents({"a": [documents(1, 40)]}, sequence_length=16, method=method)
    across, within = made.reader().batch(0, 30), made.reader(cross_documents=False).batch(0, 30)
    assert np.array_equal(across.tokens, within.tokens)
    after_end = across.tokens[:, :-1] == EOD
    assert (across.loss_mask & after_end).any()
    assert np.array_equal(within.loss_mask, across.loss_mask & ~after_end)


def test_shards_of_several_types(pack_documents: Callable[..., Any]) -> None:
    sources = {"a": [documents(1, 30)], "b": [documents(2, 30)], "c": [documents(3, 30, ids=2**31 - 1)]}
    narrow = {name: sources[name] for name in ("a", "b")}
    mixed = pack_documents(sources, dtype={"a": "<u2", "b": "<i8", "c": "<i4"}, sequence_length=16)
    batch = mixed.reader().batch(0, sum(len(plain_rows(parts, 16)) for parts in sources.values()))
    assert unpadded(batch) == Counter(tuple(row) for parts in sources.values() for row in plain_rows(parts, 16))
    same = pack_documents(narrow, dtype={"a": "<u2", "b": "<i4"}, sequence_length=16).reader().batch(0, 50)
    assert np.array_equal(same.tokens, pack_documents(narrow, sequence_length=16).reader().batch(0, 50).tokens)


def test_budgets_share_their_prefix(pack_documents: Callable[..., Any]) -> None:
    sources = {"a": [documents(1, 40)], "b": [documents(2, 25)]}
    settings = {"sequence_length": 16, "weights": {"a": 3, "b": 1}, "max_epochs": 99}
    ten = pack_documents(sources, budget_tokens=10 * 160, **settings)
    twenty = pack_documents(sources, budget_tokens=20 * 160, **settings)
    assert np.array_equal(ten.reader().batch(0, 100).tokens, twenty.reader().batch(0, 200).tokens[:100])
    assert ten.result.content == twenty.result.content


def test_how_documents_are_split_over_shards_changes_no_other_source(pack_documents: Callable[..., Any]) -> None:
    one = {"a": [documents(1, 40)], "b": [documents(2, 10)]}
    two = {"a": one["a"], "b": [one["b"][0][:5], one["b"][0][5:]]}
    settings = {"sequence_length": 16, "weights": {"a": 1, "b": 1}, "max_epochs": 99}
    first, second = (pack_documents(sources, **settings).reader().batch(0, 20) for sources in (one, two))
    mine, theirs = first.tokens[first.sources == 0], second.tokens[second.sources == 0]
    common = min(len(mine), len(theirs))
    assert common > 5
    assert np.array_equal(mine[:common], theirs[:common])


def test_phases_repeat_nothing_before_an_epoch_ends(pack_documents: Callable[..., Any]) -> None:
    parts = {"a": [documents(1, 60, low=20)], "b": [documents(2, 60, low=20)]}
    phases = tuple(
        PhaseConfig(weights={"a": a, "b": b}, tokens=tokens)
        for a, b, tokens in ((9, 1, 320), (1, 9, 320), (1, 1, None))
    )
    made = pack_documents(parts, sequence_length=16, phases=phases)
    batch = made.reader().batch(0, 80)
    for source in ("a", "b"):
        number = made.reader().source_names.index(source)
        rows = batch.tokens[batch.sources == number]
        size = len(plain_rows(parts[source], 16))
        assert len(np.unique(rows[:size], axis=0)) == min(size, len(rows))
    assert (batch.sources[:20] == 0).sum() == pytest.approx(18, abs=1)
    assert (batch.sources[20:40] == 0).sum() == pytest.approx(2, abs=1)


def test_document_boundaries(pack_documents: Callable[..., Any]) -> None:
    made = pack_documents({"a": [[[5, 6, EOD], [7, EOD], [8, 9, 10, 11, EOD]]]}, sequence_length=4)
    batch = made.reader().batch(0, 3)
    rows = {row[0]: number for number, row in enumerate(batch.tokens.tolist())}
    first, second, third = rows[5], rows[EOD], rows[11]
    assert batch.tokens[first].tolist() == [5, 6, EOD, 7, EOD]
    assert batch.positions[first].tolist() == [0, 1, 2, 0]
    assert batch.documents[first].tolist() == [0, 0, 0, 1]
    assert batch.tokens[second].tolist() == [EOD, 8, 9, 10, 11]
    assert batch.positions[second].tolist() == [0, 0, 1, 2]
    assert batch.documents[second].tolist() == [0, 1, 1, 1]
    assert batch.tokens[third].tolist() == [11, EOD, 0, 0, 0]
    assert batch.positions[third].tolist() == [0, 1, 0, 1]
    assert batch.documents[third].tolist() == [0, 0, 1, 1]
    assert batch.loss_mask[third].tolist() == [True, False, False, False]
    assert batch.starts[0] == 0
    assert batch.starts[-1] == 12
    assert (np.diff(batch.starts) > 0).all()


@pytest.mark.parametrize("method", ["concatenate", "best_fit"])
def test_document_numbers_agree_with_pieces(pack_documents: Callable[..., Any], method: str) -> None:
    parts = [documents(4, 50, high=30)]
    reader = pack_documents({"a": parts}, sequence_length=16, method=method).reader()
    batch = reader.batch(0, 30)
    for slot in range(30):
        row = np.concatenate([np.full(piece.length, number) for number, piece in enumerate(reader.documents_of(slot))])
        size = min(len(row), 16)
        assert batch.documents[slot, :size].tolist() == row[:size].tolist()
        flat = np.asarray([token for document in parts[0] for token in document])
        tokens = np.concatenate([flat[piece.start : piece.start + piece.length] for piece in reader.documents_of(slot)])
        assert batch.tokens[slot, : len(tokens)].tolist() == tokens.tolist()


def test_loss_masks_follow_their_tokens(pack_documents: Callable[..., Any]) -> None:
    chat, masks = [[5, 6, 7, EOD], [8, 9, EOD]], [[0, 0, 1, 1], [0, 2, 1]]
    sources = {"chat": [chat], "web": [documents(1, 5)]}
    for method in ("concatenate", "best_fit"):
        made = pack_documents(
            sources,
            masks={"chat": [masks]},
            sequence_length=8,
            method=method,
            weights={"chat": 1, "web": 1},
            max_epochs=9,
        )
        batch = made.reader().batch(0, 2)
        row = int(np.flatnonzero(batch.sources == 0)[0])
        by_token = {7: True, 6: False, 9: True, 5: False, 8: False, EOD: True, 0: False}
        assert batch.loss_mask[row].tolist() == [by_token[token] for token in batch.tokens[row, 1:].tolist()]
        other = batch.loss_mask[1 - row]
        assert other.all() or not other[np.argmin(other) :].any()


def test_few_open_files_are_enough(pack_documents: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [documents(seed, 4, low=5) for seed in range(12)]
    made = pack_documents({"a": parts}, sequence_length=8)
    expected = made.reader().batch(0, 90).tokens
    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, 16))
    reader = made.reader()
    assert np.array_equal(reader.batch(0, 90).tokens, expected)
    assert len(reader._opened) == 2


def test_other_shards_are_refused(pack_documents: Callable[..., Any]) -> None:
    made = pack_documents({"a": [documents(1, 4)]})
    other = pack_documents({"a": [documents(2, 4)]})
    with pytest.raises(StoreError, match="expected the 1 token shards that a was made of, got 1 or others"):
        dataclasses.replace(made, tokenization=other.tokenization).reader()
    with pytest.raises(StoreError, match="expected the 1 units of packing that a was made of, got 0"):
        dataclasses.replace(made, packing=dataclasses.replace(made.packing, units=())).reader()


def test_order_of_units_in_the_plan_does_not_matter(pack_documents: Callable[..., Any]) -> None:
    made = pack_documents({"web": [documents(1, 9), documents(2, 9)], "a": [documents(3, 9)]}, sequence_length=8)
    first, second, third = made.packing.units
    other = dataclasses.replace(made.packing, units=(third, first, second))
    read = dataclasses.replace(made, packing=other).reader().batch(0, 40)
    assert np.array_equal(read.tokens, made.reader().batch(0, 40).tokens)


def test_prefetcher_returns_the_same_batches(pack_documents: Callable[..., Any]) -> None:
    made = pack_documents({"a": [documents(1, 40)]}, sequence_length=8)
    ranges = [(at, at + 7) for at in range(0, 70, 7)]
    with Prefetcher(made.reader(), ranges, rank=1, ranks=2, depth=3) as batches:
        read = [batch.tokens for batch in batches]
        assert [*batches] == []
    expected = [made.reader().batch(*limits, rank=1, ranks=2).tokens for limits in ranges]
    assert len(read) == len(expected)
    assert all(np.array_equal(one, two) for one, two in zip(read, expected, strict=True))


def test_prefetcher_raises_and_stops(pack_documents: Callable[..., Any]) -> None:
    made = pack_documents({"a": [documents(1, 40)]}, sequence_length=8)

    def fail(batch: Any) -> Any:
        raise StoreError("the disk is gone")

    with (
        Prefetcher(made.reader(), [(0, 4)], finish=fail) as batches,
        pytest.raises(StoreError, match="the disk is gone"),
    ):
        next(iter(batches))
    endless = ((at, at + 4) for at in iter(int, 1))
    before = threading.active_count()
    with Prefetcher(made.reader(), endless) as batches:
        next(iter(batches))
    assert threading.active_count() == before
