"""What moves a digest and what does not, and how arms share work."""

import json
from collections import Counter
from pathlib import Path

import pytest

from modalities import config, plan, stages
from modalities.errors import ConfigError, InputError
from modalities.plan import Plan

BASE = """\
run: r
ingestion:
  sources:
    a: {paths: [raw/*.jsonl], language: en}
    b: {paths: [other.jsonl], language: en}
filtering: {recipe: none}
tokenization: {train: {vocab_size: 300}}
packing: {sequence_length: 32}
pretraining:
  model: {dim: 16, layers: 1, heads: 2, kv_heads: 1, ffn_dim: 32}
  total_steps: 40
  global_batch_tokens: 128
  learning_rate: 1e-2
  schedule: {name: wsd, warmup_steps: 2, decay_steps: 8}
  evaluate_every: 8
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    for name in ("raw/1.jsonl", "raw/2.jsonl", "other.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps({"text": f"{name} {i}"}) + "\n" for i in range(3)))
    return tmp_path


def resolve(text: str = BASE, **overrides: object) -> Plan:
    return plan.resolve(config.merge(config.parse(text, "mine.yaml"), config.from_python(overrides, "--config")))


def changed(before: Plan, after: Plan) -> set[str]:
    """Names of the nodes of `after` that `before` does not have, the report left out."""
    return {i.name for i in after.instances.values() if i.id not in before.instances and i.node != "reporting"}


def test_every_node_of_the_table_is_in_the_plan_and_comes_after_what_it_reads() -> None:
    got = resolve(benchmarking={"settings": {"a": {}}})
    assert {i.node for i in got.instances.values()} == set(stages.NODES)
    seen: set[str] = set()
    for instance in got.instances.values():
        assert set(instance.inputs.values()) <= seen
        seen.add(instance.id)


def test_comments_key_order_and_number_spelling_change_nothing() -> None:
    lines = BASE.splitlines()
    shuffled = "\n".join(["# a comment", *lines[5:8], *lines[:5], *lines[8:]]).replace("1e-2", "0.01 # same")
    assert list(resolve(shuffled).instances) and set(resolve(shuffled).instances) == set(resolve().instances)


def test_numerics_and_runtime_keys_are_in_no_digest() -> None:
    other = resolve(
        pretraining={"numerics": {"world_size": 2, "micro_batch": 1}, "runtime": {"log_every": 3}},
        runtime={"batches": 1},
    )
    assert set(other.instances) == set(resolve().instances)
    assert other.instances != resolve().instances, "they are carried all the same"


def test_a_learning_rate_reaches_training_and_what_follows_only() -> None:
    names = changed(resolve(), resolve(pretraining={"learning_rate": "2e-2"}))
    assert {n.partition("(")[0] for n in names} == {"pretraining", "conversion", "evaluation"}


def test_a_threshold_leaves_ingestion_heldout_and_scores_alone() -> None:
    before = resolve(filtering={"recipe": "fineweb"})
    after = resolve(filtering={"recipe": "fineweb", "rules": {"gopher_quality": {"min_doc_words": 20}}})
    names = {n.partition("(")[0] for n in changed(before, after)}
    assert "filtering" in names
    assert not names & {"ingestion", "heldout", "filtering.scores"}


def test_one_more_file_is_one_more_unit(files: Path) -> None:
    before = resolve()
    (files / "raw" / "3.jsonl").write_text('{"text": "new"}\n')
    after = resolve()
    for node in ("ingestion", "filtering.scores", "filtering", "deduplication.signatures"):
        old = next(i for i in before.instances.values() if i.name == f"{node}(a)")
        new = next(i for i in after.instances.values() if i.name == f"{node}(a)")
        assert (len(old.units), len(set(new.units) - set(old.units))) == (2, 1)
    assert "ingestion(b)" not in changed(before, after)


def test_changed_contents_are_seen_and_a_moved_project_is_not(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = resolve()
    copy = files / "copy"
    copy.mkdir()
    for name in ("raw", "other.jsonl"):
        (files / name).rename(copy / name)
    monkeypatch.chdir(copy)
    assert set(resolve().instances) == set(before.instances)
    (copy / "other.jsonl").write_text('{"text": "changed"}\n')
    assert "ingestion(b)" in changed(before, resolve())


def test_longer_training_shares_the_trunk() -> None:
    before, after = resolve(), resolve(pretraining={"total_steps": 80})
    segments = [i.name for i in after.instances.values() if i.node == "pretraining" and i.id in before.instances]
    assert segments == ["pretraining(0-8)", "pretraining(8-16)", "pretraining(16-24)", "pretraining(24-32)"]


def test_two_sources_over_the_same_files_read_them_once() -> None:
    text = BASE.replace("{paths: [other.jsonl], language: en}", "{paths: [raw/*.jsonl], language: en}")
    got = resolve(text)
    assert sum(i.node == "ingestion" for i in got.instances.values()) == 1


STUDY = """
ablations:
  grid:
    filtering.recipe: [fineweb, none]
    pretraining.learning_rate: [1e-2, 2e-2]
  seeds: [0, 1]
"""


def test_a_study_shares_what_it_can() -> None:
    got = resolve(BASE + STUDY)
    assert len(got.arms) == 8
    assert next(iter(got.arms)) == "recipe=fineweb,learning_rate=1e-2,seed=0"
    counts = Counter(i.node for i in got.instances.values() if i.scope in ("", "a", "0-8"))
    assert {node: counts[node] for node in ("ingestion", "heldout", "tokenization.tokenizer")} == dict.fromkeys(
        ("ingestion", "heldout", "tokenization.tokenizer"), 1
    )
    assert counts["filtering"] == 2
    assert counts["pretraining"] == 8
    assert counts["reporting"] == 1


def test_going_back_finds_the_same_digests_and_plans_survive_the_disk() -> None:
    first = resolve()
    resolve(pretraining={"learning_rate": "9e-3"})
    path = plan.write(resolve())
    assert plan.write(first) == path
    assert plan.read(path).instances == first.instances


@pytest.mark.parametrize(
    ("study", "message"),
    [
        (
            "ablations: {grid: {pretraining.learning_rat: [1, 2]}}",
            "learning_rat: unknown key; did you mean 'learning_rate'?",
        ),
        ("ablations: {grid: {pretraining.runtime.log_every: [1, 2]}}", "expected a key that changes some result"),
        ("ablations: {grid: {pretraining.numerics.world_size: [1, 2]}}", "expected a key that changes some result"),
        ("ablations: {grid: {pretraining.learning_rate: 3}}", "expected a list of values, got 3"),
        ("ablations: {zip: {pretraining.learning_rate: [1e-2, 2e-2], pretraining.clip: [1]}}", "lists of one length"),
        ("ablations: {grid: {pretraining.clip: [1, 1]}}", "expected different arms"),
        (
            "ablations: {seeds: [0, 1], baseline: other}",
            "ablations.baseline: expected one of seed=0, seed=1, got 'other'",
        ),
    ],
)
def test_studies_that_cannot_be_meant_are_refused(study: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(BASE + study)
    assert message in str(error.value)
    assert str(error.value).startswith(("mine.yaml:", "ablations"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"run": "a; rm -rf b"}, "run: expected letters, digits"),
        ({"run": "$(x)"}, "run: expected letters, digits"),
        ({"run": "../x"}, "run: expected letters, digits"),
        ({"pretraining": {"model": {"heads": 3}}}, "pretraining.model"),
        ({"pretraining": {"global_batch_tokens": 100}}, "pretraining.global_batch_tokens: expected a multiple of"),
        (
            {"pretraining": {"numerics": {"world_size": 3}}},
            "pretraining.global_batch_tokens: expected 4 sequences to divide",
        ),
        ({"packing": {"weights": {"a": 0.5, "c": 0.5}}}, "packing.weights.c"),
        ({"tokenization": {"train": {"vocab_size": 100}}}, "tokenization.train.vocab_size: expected 257"),
        ({"tokenization": {"tokenizer": "nowhere.json"}}, "tokenization.tokenizer: expected a tokenizer file"),
        ({"filtering": {"recipe": "finweb"}}, "filtering.recipe: expected one of"),
        ({"deduplication": {"priority": ["c"]}}, "deduplication.priority"),
    ],
)
def test_impossible_combinations_are_refused(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(**overrides)
    assert message in str(error.value)


def test_missing_inputs_name_source_and_pattern(files: Path) -> None:
    (files / "other.jsonl").unlink()
    with pytest.raises(InputError, match=r"ingestion\.sources\.b\.paths.*other\.jsonl"):
        resolve()


def test_several_config_files_are_refused(files: Path) -> None:
    with pytest.raises(ConfigError, match="join them with `extends:`"):
        plan.load_tree([Path("a.yaml"), Path("b.yaml")])
