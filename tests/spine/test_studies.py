"""What a study costs and saves, what one more seed costs, and the shipped study."""

import json
from collections import Counter
from pathlib import Path

import pytest

from modalities import cli, config, describe, plan, running
from modalities.plan import Plan

ROOT = Path(__file__).resolve().parents[2]
TEXT = """\
run: r
ingestion: {sources: {a: {paths: [a.jsonl], language: en}}}
filtering: {recipe: none}
tokenization: {train: {vocab_size: 300}}
packing: {sequence_length: 32}
pretraining:
  model: {dim: 16, layers: 1, heads: 2, kv_heads: 1, ffn_dim: 32}
  global_batch_tokens: 128
  total_steps: 40
  learning_rate: 1e-2
  schedule: {name: wsd, warmup_steps: 2, decay_steps: 8}
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(3)))


def resolve(study: str) -> Plan:
    return plan.resolve(config.parse(TEXT + f"ablations: {study}\n", "mine.yaml"))


def test_a_shared_trunk_is_counted_once() -> None:
    """32 steps are stable in the shorter run; the longer one goes on from there."""
    got = resolve("{grid: {pretraining.total_steps: [40, 80], pretraining.evaluation_steps: [[32]]}}")
    sums = describe.totals(got)
    assert sums["saved_tokens"] == 32 * 128
    assert sums["tokens"] == (40 + 80 - 32) * 128
    assert sums["saved_device_hours"] is None, "nothing was trained here yet"
    assert "4,096 tokens are not trained on twice" in describe.as_text(got)


def test_saved_instances_are_those_of_separate_runs() -> None:
    got = resolve("{seeds: [0, 1, 2]}")
    alone = plan.resolve(config.parse(TEXT, "mine.yaml"))
    assert describe.totals(got)["saved_instances"] == 3 * (len(alone.instances) - 1) - (len(got.instances) - 1)


def test_a_fourth_seed_is_its_trainings_and_what_follows() -> None:
    study = "{grid: {pretraining.learning_rate: [1e-2, 2e-2]}, seeds: [%s]}"
    before, after = resolve(study % "0, 1, 2"), resolve(study % "0, 1, 2, 3")
    new = Counter(i.node for i in after.instances.values() if i.id not in before.instances)
    assert new.pop("reporting") == 1
    per_arm = Counter(i.node for i in before.instances.values() if i.arms == ("learning_rate=1e-2,seed=0",))
    assert set(per_arm) == {"pretraining", "conversion", "evaluation"}
    assert new == Counter({node: 2 * count for node, count in per_arm.items()})


def test_reasons_are_short() -> None:
    assert len(describe._short("x" * 5000)) == 40


def test_the_shipped_study_shares_what_it_promises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    tree = config.read(Path("config/ablation-demo.yaml"))
    tree = config.override(tree, "runtime.store", config.from_python(str(tmp_path / "store"), "test"))
    got = plan.resolve(tree)
    counts = Counter(i.node for i in got.instances.values())
    assert (counts["heldout"], counts["tokenization.tokenizer"], counts["ingestion"]) == (1, 1, 3)
    assert counts["pretraining"] == len(got.arms) == 9


def test_options_may_follow_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def run(path: Path, settings: list[str], arguments: list[str]) -> int:
        seen.extend([path, settings, arguments])
        return 0

    monkeypatch.setattr(running, "run", run)
    assert cli.main(["run", "mine.yaml", "--set", "run=x", "--cores", "2", "--", "--quiet", "host"]) == 0
    assert seen == [Path("mine.yaml"), ["run=x"], ["--cores", "2", "--quiet", "host"]]
