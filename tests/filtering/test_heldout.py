"""Held-out documents: a function of seed and identities, clean, and few."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest

from modalities.errors import InputError
from modalities.filtering import heldout
from modalities.filtering.config import HeldoutConfig, heldout_section
from modalities.work import Upstream

Run = Callable[..., Any]
SENTENCE = "It is said that the people of the village number {} have always been kind to strangers, and to each other as well. "


def _texts(count: int, start: int = 0) -> list[str]:
    return [SENTENCE.format(i) * 3 for i in range(start, start + count)]


def _source(*units: Upstream) -> Upstream:
    return dataclasses.replace(units[0], units=units)


def _held(
    run_node: Run, sources: dict[str, Upstream], settings: HeldoutConfig, languages: dict[str, str | None] | None = None
) -> Any:
    wanted = heldout_section(settings, dict.fromkeys(sources) if languages is None else languages)
    made, result = run_node(heldout.run, wanted, {f"ingestion:{name}": source for name, source in sources.items()})
    return pq.read_table(made.folder / "documents.parquet").to_pylist(), result


def test_rows_point_at_their_documents_and_are_sorted(make_unit: Run, run_node: Run) -> None:
    texts = {"u1": _texts(60), "u0": _texts(60, 100)}
    units = {name: make_unit(part, name=name, group_rows=7) for name, part in texts.items()}
    rows, result = _held(
        run_node,
        {"b": _source(units["u1"], units["u0"]), "a": _source(make_unit(_texts(40, 300), name="x"))},
        HeldoutConfig(documents=5),
    )
    assert [(row["source"], row["unit"], row["row"]) for row in rows] == sorted(
        (row["source"], row["unit"], row["row"]) for row in rows
    )
    for row in rows:
        if row["source"] == "b":
            assert row["text"] == texts[row["unit"]][row["row"]] and row["id"] == f"{row['unit']}#{row['row']}"
        assert row["text_bytes"] == len(row["text"].encode())
    assert result.info["sources"]["b"] == {
        "documents": 5,
        "bytes": sum(r["text_bytes"] for r in rows if r["source"] == "b"),
        "too_small": False,
    }
    assert result.info["sources"]["a"]["documents"] == 2 and result.info["sources"]["a"]["too_small"]
    assert result.counts["documents_in"] == 160 == result.counts["documents_out"] + sum(result.dropped.values())


def test_the_choice_depends_on_seed_and_identity_alone(make_unit: Run, run_node: Run) -> None:
    texts, ids = _texts(100), [f"doc-{i}" for i in range(100)]
    settings = HeldoutConfig(documents=5)
    whole = _source(make_unit(texts, name="w", ids=ids))
    halves = _source(
        make_unit(texts[50:], name="h1", ids=ids[50:], group_rows=9), make_unit(texts[:50], name="h0", ids=ids[:50])
    )
    first, _ = _held(run_node, {"s": whole}, settings)
    second, _ = _held(run_node, {"s": halves}, settings)
    third, _ = _held(run_node, {"s": whole}, dataclasses.replace(settings, seed=1))
    assert {row["id"] for row in first} == {row["id"] for row in second}
    assert {row["id"] for row in first} != {row["id"] for row in third}
    again, _ = _held(run_node, {"s": whole}, settings)
    assert again == first


def test_what_is_not_clean_is_passed_over(make_unit: Run, run_node: Run) -> None:
    good = _texts(40)
    bad = [
        "",
        "short",
        "1234 5678 -- " * 40,
        "Das ist ein deutscher Satz, der nicht hierher geh\u00f6rt und lang genug ist. " * 4,
        "x " * 40000,
        good[0],
        good[0],
    ]
    unit = make_unit(good + bad * 4)
    rows, result = _held(run_node, {"s": _source(unit)}, HeldoutConfig(documents=100, max_share=0.9), {"s": "eng_Latn"})
    assert sorted(row["text"] for row in rows) == sorted(good)
    assert {
        "empty": 4,
        "too_short": 4,
        "few_letters": 4,
        "too_long": 4,
        "duplicate": 8,
    }.items() <= result.dropped.items() or result.dropped["language"] > 4
    assert result.dropped["language"] >= 4 and sum(result.dropped.values()) == 28


def test_duplicates_across_sources_are_held_out_once(make_unit: Run, run_node: Run) -> None:
    sources = {name: _source(make_unit(_texts(30), name=name)) for name in ("a", "b")}
    rows, _ = _held(run_node, sources, HeldoutConfig(documents=20, max_share=0.5))
    assert len({row["text"] for row in rows}) == len(rows)


def test_more_candidates_are_looked_at_when_the_pool_runs_dry(
    make_unit: Run, run_node: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heldout, "_POOL", 1)
    rows, result = _held(
        run_node, {"s": _source(make_unit(["no"] * 90 + _texts(10)))}, HeldoutConfig(documents=8, max_share=0.1)
    )
    assert len(rows) == 8 and result.counts["documents_in"] == 100


@pytest.mark.parametrize(
    ("texts", "language", "message"),
    [
        (_texts(3), None, r"source 's': expected at least 21 documents.*got 3; raise heldout.max_share"),
        ([], None, r"source 's': expected at least 21 documents.*got 0"),
        (_texts(30), "de", r"source 's': expected a document.*got none of 30 \(language: 30\)"),
    ],
)
def test_a_source_that_yields_nothing_is_an_error(
    make_unit: Run, run_node: Run, texts: list[str], language: str | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        _held(run_node, {"s": _source(make_unit(texts))}, HeldoutConfig(), {"s": language})
