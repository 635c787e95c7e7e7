"""Evaluation items in training text."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modalities.deduplication import contamination, words
from modalities.deduplication.config import DecontaminationConfig, DeduplicationConfig
from modalities.errors import InputError

Make = Callable[..., Any]
QUESTION = "Which of the seven rivers that cross the old town carries the most water"
ANSWERS = ["The broad one behind the mill", "None of them, for they are dry"]


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, Path]:
    """Two tasks: one JSONL with a question and its answers, one text file of lines."""
    rivers, lines = tmp_path / "rivers.jsonl", tmp_path / "lines.txt.gz"
    records = [{"query": QUESTION, "choices": ANSWERS, "gold": 0}, {"query": "Too short", "choices": []}]
    rivers.write_text("".join(json.dumps(record) + "\n" for record in records) + "\n", encoding="utf-8")
    lines.write_bytes(gzip.compress(b"one two three four five six seven eight nine ten eleven twelve thirteen\n"))
    return {"rivers": rivers, "lines": lines}


def _config(tasks: dict[str, Path], **other: Any) -> DeduplicationConfig:
    return DeduplicationConfig(decontamination=DecontaminationConfig(tasks=tasks, **other))


def _documents(make: Make, prose: Make) -> list[Any]:
    over_the_seam = f"{prose(1)} the old town carries the MOST water?! The broad one, behind the mill; {prose(2)}"
    too_little = f"{prose(3)} the most water the broad one behind the mill {prose(4)}"
    counting = "One two, three four. Five six seven eight nine ten eleven twelve thirteen."
    return [
        make("clean", prose(5)),
        make("seam", over_the_seam),
        make("short", too_little),
        make("both", f"{over_the_seam} {counting}"),
        make("count", counting),
    ]


def test_items_are_found_and_counted_by_task(store: Any, make: Make, prose: Make, tasks: dict[str, Path]) -> None:
    outcome = store.run({"s": [_documents(make, prose)]}, _config(tasks))
    assert outcome.kept == {"s": {"clean", "short"}}
    assert {outcome.reasons["s", name] for name in ("seam", "both", "count")} == {"contaminated"}
    (signed,) = outcome.signatures["s"]
    assert signed.counts["contaminated.rivers"] == 2
    assert signed.counts["contaminated.lines"] == 2
    assert signed.info["items"] == {"rivers": 2, "lines": 1}
    assert signed.info["items_too_short"] == {"rivers": 1, "lines": 0}
    assert outcome.decisions["s"][0].dropped == {"contaminated": 3}


def test_flagged_documents_stay(store: Any, make: Make, prose: Make, tasks: dict[str, Path]) -> None:
    outcome = store.run({"s": [_documents(make, prose)]}, _config(tasks, action="flag"))
    # "seam" and "both" are near-duplicates of each other: flagging leaves that to deduplication
    assert len(outcome.kept["s"]) >= 4
    assert "contaminated" not in outcome.reasons.values()
    table = pq.read_table(outcome.folders[1] / "deduplication.parquet")
    assert table.column("contaminated").to_pylist() == [None, "rivers", None, "lines rivers", "lines"]


def test_contaminated_documents_do_not_win_a_cluster(
    store: Any, make: Make, prose: Make, tasks: dict[str, Path]
) -> None:
    item = f"{QUESTION} {ANSWERS[0]}"
    text = prose(1, count=3000)
    documents = [make("a", f"{text} {item}"), make("b", text)]
    assert store.run({"s": [documents]}, _config(tasks)).kept == {"s": {"b"}}
    assert store.run({"s": [documents]}, DeduplicationConfig()).kept == {"s": {"a"}}


def test_it_works_without_minhash(store: Any, make: Make, prose: Make, tasks: dict[str, Path]) -> None:
    config = DeduplicationConfig(method="none", decontamination=DecontaminationConfig(tasks=tasks, ngram=9))
    assert store.run({"s": [_documents(make, prose)]}, config).kept == {"s": {"clean"}}


def test_equal_to_datatrove_hashes(tasks: dict[str, Path]) -> None:
    from datatrove.pipeline.decont.n_grams import NGramsDecontConfig, NGramsDecontIndexer

    indexer = object.__new__(NGramsDecontIndexer)  # its constructor asks for lighteval
    from datatrove.utils.hashing import create_hash_func
    from datatrove.utils.word_tokenizers import load_word_tokenizer

    indexer.config = NGramsDecontConfig(n_grams=13, find_query_ngrams=True)
    indexer.tokenizer = load_word_tokenizer("en")
    indexer.hash_func = create_hash_func(indexer.config.hash_config)
    expected = {value for answer in ANSWERS for value in indexer.compute_hashes(answer, QUESTION)}
    found = contamination.index({"rivers": tasks["rivers"]}, ngram=13, splitter=words.splitter("en"))
    assert set(found.hashes.tolist()) == expected


def test_bad_task_files_are_named(tmp_path: Path) -> None:
    splitter = words.splitter("en")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"query": "a"}\n{"query": \n', encoding="utf-8")
    with pytest.raises(InputError, match=r"broken.jsonl:2: expected a JSON record"):
        contamination.index({"t": broken}, ngram=3, splitter=splitter)
    latin = tmp_path / "latin.txt"
    latin.write_bytes("größe".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin.txt: expected evaluation items in UTF-8"):
        contamination.index({"t": latin}, ngram=3, splitter=splitter)
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(gzip.compress(b"one two three four " * 100)[:-12])
    with pytest.raises(InputError, match=r"cut.txt.gz: expected"):
        contamination.index({"t": cut}, ngram=3, splitter=splitter)
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"\n\n")
    found = contamination.index({"t": empty}, ngram=3, splitter=splitter)
    assert found.items == {"t": 0}
    text = splitter.split(pa.array(["one two three four"], pa.large_string()))
    assert contamination.contaminated(text, known=found) == [()]
