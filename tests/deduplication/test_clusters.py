"""Clusters against datatrove's stages 2 and 3, the choice of survivors, and held-out documents."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datatrove.data import Document as DatatroveDocument
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupSignature,
)
from datatrove.utils.hashing import HashConfig

from modalities.deduplication import clusters, stage, survivors, unions
from modalities.deduplication import config as keys
from modalities.deduplication.config import DeduplicationConfig
from modalities.errors import StoreError

Make = Callable[..., Any]


def _datatrove(texts: list[str], folder: Path) -> set[frozenset[int]]:
    """Return datatrove's clusters of document numbers."""
    config = MinhashConfig(hash_config=HashConfig(precision=64, hash_fc="xxhash"))
    documents = [DatatroveDocument(text=text, id=str(i)) for i, text in enumerate(texts)]
    half = len(documents) // 2
    for rank, part in enumerate((documents[:half], documents[half:])):
        MinhashDedupSignature(str(folder / "sig"), config=config).run(iter(part), rank, 2)
    for band in range(14):
        MinhashDedupBuckets(str(folder / "sig"), str(folder / "dups"), config=config).run(None, band, 14)
    MinhashDedupCluster(str(folder / "dups"), str(folder / "out"), config=config, save_cluster_id=True).run(None, 0, 1)
    found: dict[int, set[int]] = {}
    for rank in range(2):
        path = folder / f"out/{rank:06d}.clusters"
        if path.exists():
            for document, cluster in np.fromfile(path, "<u4").reshape(-1, 2).tolist():
                found.setdefault(cluster, set()).add(document + rank * half)
    return {frozenset(members) for members in found.values()}


def test_partition_equals_datatrove(store: Any, make: Make, pages: dict[str, list[str]], tmp_path: Path) -> None:
    texts = pages["en"][:60]
    rng = np.random.default_rng(3)
    for copy in range(120):  # from nearly equal to barely alike, copies of copies too
        words = texts[int(rng.integers(0, len(texts)))].split()
        keep = rng.random(len(words)) > copy / 120 * 0.12
        texts.append(" ".join(word for word, kept in zip(words, keep, strict=True) if kept))
    texts = [texts[i] for i in rng.permutation(len(texts))]
    ours = store.run({"s": [[make(str(i), text) for i, text in enumerate(texts)]]}, DeduplicationConfig())
    reference = _datatrove(texts, tmp_path / "datatrove")
    assert len(reference) > 10
    assert sum(len(c) for c in reference) < len(texts) - 20
    drops, kept = (pq.read_table(ours.folders[0] / f"{name}.parquet") for name in ("drops", "clusters"))
    found: dict[int, set[int]] = {}
    for row in drops.to_pylist() + kept.to_pylist():
        found.setdefault(row["cluster"], set()).add(row["row"])
    assert {frozenset(members) for members in found.values()} == reference
    assert len(ours.kept["s"]) == len(texts) - sum(len(c) - 1 for c in reference)


def _corpus(make: Make, prose: Make) -> list[Any]:
    """Return 60 documents in 12 groups of near or exact duplicates and 24 that are alone."""
    rng = np.random.default_rng(5)
    documents = [make(f"{i:03d}", prose(i % 12, change=int(rng.integers(0, 2)) * (i // 12))) for i in range(60)]
    documents += [make(f"x{i}", prose(1000 + i)) for i in range(24)]
    return [documents[i] for i in rng.permutation(len(documents))]


@pytest.mark.parametrize("method", ["exact", "minhash"])
def test_survivors_do_not_depend_on_units(store: Any, make: Make, prose: Make, method: Any) -> None:
    documents = _corpus(make, prose)
    outcomes = []
    for number in (1, 2, 7):
        for order in (documents, documents[::-1]):
            edges = np.linspace(0, len(order), number + 1).astype(int)
            units = [order[start:stop] for start, stop in itertools.pairwise(edges)]
            keys = {"s": [f"{number}-{i}" for i in range(number)]}
            outcomes.append(store.run({"s": units}, DeduplicationConfig(method=method), unit_keys=keys))
    first = outcomes[0]
    assert 0 < len(first.reasons) < 84
    for other in outcomes[1:]:
        assert (other.kept, other.reasons, other.sizes) == (first.kept, first.reasons, first.sizes)
        assert other.clusters.info["cluster_sizes"] == first.clusters.info["cluster_sizes"]


def test_smallest_id_of_the_first_source_survives(store: Any, make: Make, prose: Make) -> None:
    sources = {
        "a": [[make("1", prose(1)), make("0", prose(2)), make("5", prose(3))]],
        "b": [[make("9", prose(1, change=1)), make("8", prose(1)), make("3", prose(2))]],
    }
    outcome = store.run(sources, DeduplicationConfig(priority=("b",)))
    assert outcome.kept == {"a": {"5"}, "b": {"8", "3"}}
    assert outcome.reasons == {
        ("a", "1"): "exact_duplicate",
        ("a", "0"): "exact_duplicate",
        ("b", "9"): "near_duplicate",
    }
    assert outcome.sizes["b", "8"] == 3
    assert outcome.sizes["b", "3"] == 2
    assert outcome.sizes["a", "5"] == 1
    assert store.run(sources, DeduplicationConfig()).kept == {"a": {"1", "0", "5"}, "b": set()}


@pytest.mark.parametrize(("scope", "dropped"), [("source", 1), ("language", 2), ("global", 3)])
def test_scope(store: Any, make: Make, prose: Make, scope: Any, dropped: int) -> None:
    sources = {
        "a": [[make("a1", prose(1)), make("a2", prose(1))]],
        "b": [[make("b1", prose(1))]],
        "c": [[make("c1", prose(1))]],
    }
    outcome = store.run(sources, DeduplicationConfig(scope=scope), languages={"a": "en", "b": "en", "c": "de"})
    assert len(outcome.reasons) == dropped


def test_held_out_wins_in_every_scope(store: Any, make: Make, prose: Make) -> None:
    sources = {
        "a": [[make("0", prose(1, change=2)), make("1", prose(1)), make("2", prose(1)), make("3", prose(2))]],
        "b": [[make("4", prose(1)), make("5", prose(3))]],
    }
    heldout = [{"source": "a", "unit": "a-0", "row": 1, "id": "1", "text": prose(1), "language": "en"}]
    for scope in ("source", "global"):
        outcome = store.run(
            sources, DeduplicationConfig(scope=scope), heldout=heldout, languages={"a": "en", "b": "de"}
        )
        assert outcome.kept == {"a": {"3"}, "b": {"5"}}
        assert outcome.reasons == {
            ("a", "0"): "near_duplicate_of_held_out",
            ("a", "1"): "held_out",
            ("a", "2"): "exact_duplicate_of_held_out",
            ("b", "4"): "exact_duplicate_of_held_out",
        }


def test_held_out_text_that_was_cleaned_otherwise_still_wins(store: Any, make: Make, prose: Make) -> None:
    other = prose(50)
    sources = {"a": [[make("0", prose(1)), make("1", prose(1)), make("2", other)]]}
    heldout = [{"source": "a", "unit": "a-0", "row": 1, "id": "1", "text": other, "language": "en"}]
    outcome = store.run(sources, DeduplicationConfig(), heldout=heldout)
    assert outcome.kept == {"a": set()}
    assert outcome.reasons["a", "0"] == "exact_duplicate_of_held_out"


def test_held_out_leaves_all_sources_that_share_a_unit(store: Any, make: Make, prose: Make) -> None:
    documents = [make("0", prose(1)), make("1", prose(2)), make("2", prose(3))]
    heldout = [
        {"source": "a", "unit": "u", "row": 1, "id": "1", "text": prose(2), "language": "en"},
        {"source": "a", "unit": "u", "row": 7, "id": "gone", "text": prose(9), "language": "en"},
    ]
    for method in ("none", "exact", "minhash"):
        outcome = store.run(
            {"a": [documents], "b": [documents]},
            DeduplicationConfig(method=method, scope="source"),
            heldout=heldout,
            unit_keys={"a": ["u"], "b": ["u"]},
        )
        assert outcome.kept == {"a": {"0", "2"}, "b": {"0", "2"}}
        assert set(outcome.reasons.values()) == {"held_out"}


def test_none_keeps_duplicates(store: Any, make: Make, prose: Make) -> None:
    outcome = store.run({"a": [[make("0", prose(1)), make("1", prose(1))]]}, DeduplicationConfig(method="none"))
    assert outcome.kept == {"a": {"0", "1"}}


def test_unit_of_nothing_but_duplicates(store: Any, make: Make, prose: Make) -> None:
    units = [[make("b", prose(1))], [make(f"c{i}", prose(1)) for i in range(10)], []]
    outcome = store.run({"s": units}, DeduplicationConfig())
    assert outcome.kept == {"s": {"b"}}
    second, third = outcome.decisions["s"][1:]
    assert second.counts == {"documents_in": 10, "documents_out": 0}
    assert second.dropped == {"exact_duplicate": 10}
    assert third.counts == {"documents_in": 0, "documents_out": 0}
    assert outcome.sizes["s", "b"] == 11


def test_texts_of_few_words_are_compared_exactly(store: Any, make: Make) -> None:
    documents = [make("a", "too short"), make("b", "too short"), make("c", "too Short"), make("d", ""), make("e", "")]
    outcome = store.run({"s": [documents]}, DeduplicationConfig())
    assert outcome.kept == {"s": {"a", "c", "d"}}


def test_identical_ids(store: Any, make: Make, prose: Make) -> None:
    units = [[make("x", prose(1)), make("x", prose(1))], [make("x", prose(1)), make("x", prose(2))]]
    outcome = store.run({"s": units}, DeduplicationConfig())
    first, second = (pq.read_table(folder / "deduplication.parquet") for folder in outcome.folders[1:])
    assert first.column("keep").to_pylist() == [True, False]
    assert second.column("keep").to_pylist() == [False, True]


def test_documents_that_filtering_dropped_take_no_part(store: Any, make: Make, prose: Make) -> None:
    documents = [make("a", prose(1), keep=False), make("b", prose(1)), make("c", prose(1))]
    outcome = store.run({"s": [documents]}, DeduplicationConfig())
    assert outcome.kept == {"s": {"b"}}
    table = pq.read_table(outcome.folders[1] / "deduplication.parquet")
    assert table.column("reason").to_pylist() == ["filtering", None, "exact_duplicate"]
    assert table.column("cluster_size").to_pylist() == [None, 2, 2]
    (result,) = outcome.decisions["s"]
    assert result.counts == {"documents_in": 2, "documents_out": 1}
    assert result.info["samples"]["exact_duplicate"][0]["id"] == "c"


def test_largest_clusters_are_listed(store: Any, make: Make, prose: Make) -> None:
    documents = [make(f"{i:02d}", prose(i % 3 if i < 20 else 2)) for i in range(40)]
    heldout = [{"source": "s", "unit": "other", "row": 0, "id": "h", "text": prose(1), "language": "en"}]
    outcome = store.run({"s": [documents[:9], documents[9:]]}, DeduplicationConfig(report_clusters=3), heldout=heldout)
    largest, *others = outcome.clusters.info["largest"]
    (second,) = [entry for entry in others if entry["held_out"]]
    assert (largest["size"], largest["held_out"], second["size"], len(others)) == (26, False, 7, 2)
    assert largest["documents"][0] == {"source": "s", "id": "02", "excerpt": prose(2)[:160], "state": "kept"}
    assert len(largest["documents"]) == survivors.MEMBERS_LISTED
    assert [d["id"] for d in second["documents"]][:2] == ["h", "01"]
    assert outcome.clusters.counts["clusters"] == 3
    assert outcome.clusters.counts["near_duplicate"] == 0
    assert outcome.clusters.info["cluster_sizes"] == {"7": 2, "26": 1}


def test_few_clusters_at_a_time_choose_the_same(
    store: Any, make: Make, prose: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = _corpus(make, prose)
    expected = store.run({"s": [documents]}, DeduplicationConfig())
    monkeypatch.setattr(survivors, "CLUSTERS_AT_ONCE", 3)
    assert store.run({"s": [documents]}, DeduplicationConfig()).kept == expected.kept


def test_prefixes_join_the_same_keys() -> None:
    rng = np.random.default_rng(0)
    distinct = rng.integers(0, 2**64, (3000, 2), dtype=np.uint64)
    distinct[1::2, 0] = distinct[::2, 0]  # equal upper halves are no equal keys
    which = rng.integers(0, 3000, 10_000)
    nodes = rng.permutation(20_000)[:10_000]
    nodes.sort()
    found = []
    for at_once in (10**6, 1000, 100):
        joined = unions.Unions(20_000)
        joined.join_equal(distinct[which], nodes, keys_at_once=at_once)
        found.append(joined.roots().copy())
    expected = np.arange(20_000)
    for key in range(3000):
        members = nodes[which == key]
        expected[members] = members.min() if len(members) else 0
    for roots in found:
        np.testing.assert_array_equal(roots, expected)


def test_misaligned_filtering_is_refused(store: Any, make: Make) -> None:
    documents = [make("a", "text", keep=False)]
    inputs = {"ingestion": store.ingest(documents, "u"), "filtering": store.filter(documents, "u")}
    signed = pa.table({name: pa.array([1], pa.uint64()) for name in ("text_high",)})
    signed = signed.append_column("id", pa.array(["a"])).append_column("excerpt", pa.array(["x"]))
    signed = signed.append_column("contaminated", pa.array([None], pa.string()))
    folder = store.new()
    pq.write_table(signed, folder / "signatures.parquet")
    empty = store.new()
    pq.write_table(clusters.DROPS.empty_table(), empty / "drops.parquet")
    pq.write_table(clusters.CLUSTERS.empty_table(), empty / "clusters.parquet")
    made = type(inputs["ingestion"])
    manifest = inputs["ingestion"].manifest
    inputs |= {"signatures": made(folder=folder, manifest=manifest), "clusters": made(folder=empty, manifest=manifest)}
    with pytest.raises(StoreError, match="expected a text hash for exactly the documents"):
        stage.run_unit(store.work("deduplication", keys.section(DeduplicationConfig(), "s"), inputs))
