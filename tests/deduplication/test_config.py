"""Keys and sections."""

from pathlib import Path

import pytest

from modalities.config import Tree, load, parse, plain, select
from modalities.deduplication import config as keys
from modalities.errors import ConfigError, Invalid


def _load(text: str) -> keys.DeduplicationConfig:
    tree: Tree = parse(text, "run.yaml")
    return load(keys.DeduplicationConfig, tree, "deduplication")


def test_defaults_are_those_of_datatrove() -> None:
    from datatrove.pipeline.dedup.minhash import MinhashConfig

    ours, theirs = keys.DeduplicationConfig(), MinhashConfig()
    assert (ours.ngram, ours.buckets, ours.hashes_per_bucket, ours.seed) == (
        theirs.n_grams,
        theirs.num_buckets,
        theirs.hashes_per_bucket,
        theirs.seed,
    )
    assert (theirs.hash_config.hash_fc, theirs.hash_config.precision) == ("xxhash", 64)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("methd: exact", r"run.yaml:1: deduplication.methd: .*method"),
        ("method: fuzzy", r"run.yaml:1: deduplication.method: expected one of 'none', 'exact', 'minhash', got"),
        ("buckets: 0", r"run.yaml:1: deduplication.buckets: expected 1 to 1000, got 0"),
        ("seed: -1", r"run.yaml:1: deduplication.seed: expected 0 to 2\^32 - 1, got -1"),
        ("priority: [a, b, a]", r"run.yaml:1: deduplication.priority: expected every source once, got a twice"),
        ("decontamination: {tasks: {}}", r"deduplication.decontamination.tasks: expected at least one task"),
        ("decontamination: {tasks: {a b: x}}", r"expected a name without blanks, got 'a b'"),
        ("decontamination: {tasks: {a: x}, ngram: 0}", r"decontamination.ngram: expected 1 to 100 words, got 0"),
    ],
)
def test_bad_keys_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _load(text)


def test_check_names_unknown_sources_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"priority\[1\]: expected one of a, b, got c"):
        keys.check(keys.DeduplicationConfig(priority=("a", "c")), {"a": "en", "b": None})
    tasks = keys.DecontaminationConfig(tasks={"t": tmp_path / "gone.jsonl"})
    with pytest.raises(Invalid, match=r"decontamination.tasks.t: expected a file, got .*gone.jsonl"):
        keys.check(keys.DeduplicationConfig(decontamination=tasks), {"a": "en"})
    with pytest.raises(ConfigError, match=r"tasks.t: expected a readable file"):
        keys.signatures_section(keys.DeduplicationConfig(decontamination=tasks), "en")


def test_task_files_count_by_content(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("other" if name == "c.txt" else "same", encoding="utf-8")
    sections = [
        keys.signatures_section(
            keys.DeduplicationConfig(decontamination=keys.DecontaminationConfig(tasks={"t": tmp_path / name})), "en"
        )
        for name in ("a.txt", "b.txt", "c.txt")
    ]
    results = [select(section, "result") for section in sections]
    assert results[0] == results[1] != results[2]
    assert plain(sections[0])["tasks"]["t"]["path"].endswith("a.txt")


def test_signatures_do_not_depend_on_scope_and_priority() -> None:
    one, two = keys.DeduplicationConfig(), keys.DeduplicationConfig(scope="source", priority=("a",), report_clusters=3)
    assert select(keys.signatures_section(one, "en"), "result") == select(keys.signatures_section(two, "en"), "result")
    assert select(keys.clusters_section(one, {}), "result") != select(keys.clusters_section(two, {}), "result")
