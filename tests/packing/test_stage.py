import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modalities.errors import ConfigError, StoreError
from modalities.packing import index, records
from modalities.packing.best_fit import best_fit_decreasing

lengths_of_documents = st.lists(st.integers(0, 40), max_size=30)
EOD = 1


def document(length: int, first: int = 10) -> list[int]:
    return [*range(first, first + length - 1), EOD]


def offsets_of(lengths: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def rows_of(blocks: Any, lengths: list[int]) -> list[list[int]]:
    """Token numbers of each row; asserts that every piece lies in its document."""
    offsets, rows = offsets_of(lengths), []
    for counts, pieces in blocks:
        assert counts.sum() == len(pieces)
        for part in np.split(pieces, np.cumsum(counts)[:-1]) if len(counts) > 0 else []:
            row: list[int] = []
            for start, length, number in part.tolist():
                assert length > 0
                assert offsets[number] <= start
                assert start + length <= offsets[number + 1]
                row += range(start, start + length)
            rows.append(row)
    return rows


def pairs_of(rows: list[list[int]]) -> list[tuple[int, int]]:
    return [pair for row in rows for pair in itertools.pairwise(row)]


@given(lengths_of_documents, st.integers(1, 20))
@settings(max_examples=200, deadline=None)
def test_concatenate_trains_each_pair_once(lengths: list[int], sequence_length: int) -> None:
    rows = rows_of(records.concatenate(offsets_of(lengths), sequence_length=sequence_length), lengths)
    assert pairs_of(rows) == [(token, token + 1) for token in range(sum(lengths) - 1)]
    assert all(len(row) == sequence_length + 1 for row in rows[:-1])


@given(lengths_of_documents, st.integers(1, 20), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_best_fit_covers_documents_exactly(lengths: list[int], sequence_length: int, window: int) -> None:
    blocks = records.best_fit(offsets_of(lengths), sequence_length=sequence_length, window_documents=window)
    rows = rows_of(blocks, lengths)
    number = np.repeat(np.arange(len(lengths)), lengths)
    inside = [pair for pair in pairs_of(rows) if number[pair[0]] == number[pair[1]]]
    assert sorted(inside) == [(t, t + 1) for t in range(sum(lengths) - 1) if number[t] == number[t + 1]]
    assert all(2 <= len(row) <= sequence_length + 1 for row in rows)
    times = Counter(token for row in rows for token in row)
    for which, length in enumerate(lengths):
        if 2 <= length <= sequence_length + 1:  # not cut: in one row, in one piece, once
            first = sum(lengths[:which])
            assert [times[token] for token in range(first, first + length)] == [1] * length
            assert sum(first in row and first + length - 1 in row for row in rows) == 1


def test_blocks_join_seamlessly(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(0).integers(0, 9, 200).tolist()
    whole = rows_of(records.concatenate(offsets_of(lengths), sequence_length=5), lengths)
    monkeypatch.setattr(records, "_BLOCK_SEQUENCES", 3)
    assert rows_of(records.concatenate(offsets_of(lengths), sequence_length=5), lengths) == whole


def plain_best_fit(lengths: list[int], capacity: int) -> list[list[int]]:
    """The textbook: every piece looks at every bin; of bins with equal room it takes the one that was filled last."""
    bins: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        room = [(capacity - sum(of), -age) for age, of in enumerate(bins) if capacity - sum(of) >= length]
        bins.append([*(bins.pop(-min(room)[1]) if room else []), length])
    return sorted(sorted(of) for of in bins)


@given(st.lists(st.integers(1, 33), max_size=60))
@settings(max_examples=200, deadline=None)
def test_best_fit_decreasing_equals_the_textbook(lengths: list[int]) -> None:
    bins = best_fit_decreasing(np.asarray(lengths, np.int64), capacity=33)
    found: dict[int, list[int]] = {}
    for number, length in zip(bins.tolist(), lengths, strict=True):
        found.setdefault(number, []).append(length)
    assert sorted(found) == list(range(len(found)))
    assert sorted(sorted(of) for of in found.values()) == plain_best_fit(lengths, 33)


def test_counts_of_empty_and_lone_documents(pack_documents: Callable[..., Any]) -> None:
    parts = [[document(5), [], [], document(3), []], [], [[EOD]]]
    made = pack_documents({"web": parts}, sequence_length=4)
    assert made.result.counts == {
        "documents_in": 6,
        "documents_out": 2,
        "tokens": 9,
        "sequences": 2,
        "pairs": 7,
        "padding_tokens": 1,
        "cut_documents": 1,
    }
    assert made.result.dropped == {"empty": 3, "no_target": 1}
    assert [unit.manifest.counts["sequences"] for unit in made.packing.units] == [2, 0, 0]
    assert made.reader().batch(0, 2).tokens.shape == (2, 5)


def test_source_smaller_than_a_sequence(pack_documents: Callable[..., Any]) -> None:
    for method in ("concatenate", "best_fit"):
        made = pack_documents({"web": [[document(5)]]}, sequence_length=100, method=method)
        batch = made.reader().batch(0, 1)
        assert batch.tokens[0, :5].tolist() == document(5)
        assert batch.loss_mask[0].tolist() == [True] * 4 + [False] * 96
        assert made.result.counts["padding_tokens"] == 96


def test_nothing_to_train_on(pack_documents: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"packing: expected at least one document of two tokens, got none in web"):
        pack_documents({"web": [[[EOD]], []]})
    with pytest.raises(ConfigError, match="expected documents in source wiki, which has weight 1/2, got 0 tokens"):
        pack_documents({"web": [[document(9)]], "wiki": [[]]}, weights={"web": 1, "wiki": 1})
    made = pack_documents({"web": [[document(9)]], "wiki": [[]]}, sequence_length=4)
    assert made.reader().batch(0, 20).sources.tolist() == [0] * 20


def test_weights_by_tokens_and_by_documents(pack_documents: Callable[..., Any]) -> None:
    """Source b has documents four times as long; a's last row is padded. Shares hold for what was asked."""
    sources = {"a": [[document(5) for _ in range(101)]], "b": [[document(20) for _ in range(200)]]}
    for unit, share_of_a in (("tokens", 1 / 2), ("documents", 1 / 5)):
        made = pack_documents(sources, sequence_length=16, weights={"a": 1, "b": 1}, weight_unit=unit)
        used = {part.source: part for part in index.check_budget(index.read(made.packing.folder), sequences=10**6)}
        total = used["a"].tokens + used["b"].tokens
        assert used["a"].tokens / total == pytest.approx(share_of_a, abs=0.001)


def test_natural_weights_end_epochs_together(pack_documents: Callable[..., Any]) -> None:
    sources = {"a": [[document(50)] * 30], "b": [[document(50)] * 7, [document(9)]], "c": [[document(4)]]}
    made = pack_documents(sources, sequence_length=8)
    of = index.read(made.packing.folder)
    total = sum(source.sequences for source in of.sources)
    assert [used.epochs for used in index.check_budget(of, sequences=3 * total)] == [3.0, 3.0, 3.0]


def test_budget_over_the_data(pack_documents: Callable[..., Any]) -> None:
    sources = {"web": [[document(65)] * 10], "wiki": [[document(65)]]}
    settings_ = {"sequence_length": 64, "weights": {"web": 0.5, "wiki": 0.5}, "max_epochs": 4}
    made = pack_documents(sources, budget_tokens=64 * 8, **settings_)
    assert made.result.info["sources"]["wiki"]["epochs"] == 4.0  # half of 8 sequences, and it has one
    with pytest.raises(ConfigError) as caught:
        pack_documents(sources, budget_tokens=64 * 60, **settings_)
    message = str(caught.value)
    assert message.startswith(
        "packing.max_epochs: expected at most 4 epochs of each source, got wiki 29.00 for 3,840 tokens"
    )
    assert "web: 31 of 11 sequences (649 tokens) = 2.82 epochs" in message
    pack_documents(sources, budget_tokens=64 * 60, **settings_ | {"max_epochs": 100})


def test_phases_end_before_the_budget(pack_documents: Callable[..., Any]) -> None:
    phases = ({"weights": {"web": 1}, "tokens": 100},)
    from modalities.packing.config import PhaseConfig

    made = pack_documents({"web": [[document(65)] * 10]}, sequence_length=10, phases=(PhaseConfig(**phases[0]),))
    of = index.read(made.packing.folder)
    index.check_budget(of, sequences=10)
    with pytest.raises(ConfigError, match="expected phases for 11 sequences of 10 tokens, got 10"):
        index.check_budget(of, sequences=11)


def test_content_depends_on_tokens_alone(pack_documents: Callable[..., Any]) -> None:
    sources = {"web": [[document(9), document(5)], [document(7)]]}
    one, two = pack_documents(sources), pack_documents(sources, budget_tokens=100, max_epochs=9.0)
    assert one.result.content == two.result.content
    assert one.result.content != pack_documents({"web": [[document(9), document(5)], [document(8)]]}).result.content
    assert one.result.content != pack_documents(sources, sequence_length=512).result.content


def test_index_says_nothing_of_budget_or_seed(pack_documents: Callable[..., Any]) -> None:
    made = pack_documents({"web": [[document(9)]]}, budget_tokens=9)
    data = json.loads((made.packing.folder / "index.json").read_text())
    assert sorted(data) == ["format", "method", "phases", "sequence_length", "sources"]
    assert index.read(made.packing.folder).sources[0].units[0].sequences == 1


def test_damaged_files_are_named(pack_documents: Callable[..., Any]) -> None:
    made = pack_documents({"web": [[document(90)]]}, sequence_length=8)
    folder: Path = made.packing.units[0].folder
    shard = made.tokenization["web"].units[0].folder / "tokens.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-2])
    with pytest.raises(StoreError, match=r"tokens\.bin: expected 180 bytes, got 178"):
        made.reader().batch(0, 3)
    shard.write_bytes(whole)
    (folder / "records.json").write_text("{}")
    with pytest.raises(StoreError, match=r"records\.json: not readable sequence records"):
        made.reader().batch(0, 3)
    (made.packing.folder / "index.json").write_text('{"format": 2}')
    with pytest.raises(StoreError, match=r"index\.json: expected format 1, got 2"):
        made.reader()
