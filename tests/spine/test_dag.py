"""What the rules are told: inputs, threads and memory of each job, and what the head removes."""

import json
import types
from pathlib import Path
from typing import Any

import pytest

from modalities import config, dag, job, plan
from modalities.dag import Dag
from modalities.errors import ConfigError
from modalities.store import Store

CONFIG = """\
run: r
ingestion: {sources: {a: {paths: [raw/*.jsonl], language: en}}}
filtering: {recipe: none}
tokenization: {train: {vocab_size: 300}}
packing: {sequence_length: 32}
pretraining:
  model: {dim: 16, layers: 1, heads: 2, kv_heads: 1, ffn_dim: 32}
  total_steps: 4
  global_batch_tokens: 128
  learning_rate: 1e-2
  schedule: {name: constant, warmup_steps: 2}
  numerics: {world_size: 2}
runtime: {batches: 2}
"""


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dag:
    monkeypatch.chdir(tmp_path)
    Path("raw").mkdir()
    for number in range(5):
        Path(f"raw/{number}.jsonl").write_text(json.dumps({"text": f"text {number}"}) + "\n")
    resolved = plan.resolve(config.parse(CONFIG, "mine.yaml"))
    return Dag(plan.write(resolved), resolved)


def work(of: Dag, name: str, batch: int | None = None) -> Any:
    digest = next(i.digest for i in of.plan.instances.values() if i.name == name)
    return types.SimpleNamespace(work=digest if batch is None else f"{digest}.{batch}")


def test_a_batch_waits_for_the_same_batch_and_a_gather_for_all(rules: Dag) -> None:
    scores, ingestion = (work(rules, f"{n}(a)").work for n in ("filtering.scores", "ingestion"))
    folder = "results/runs/r/.stamps"
    assert rules.inputs("filtering.scores")(work(rules, "filtering.scores(a)", 1)) == [
        f"{folder}/ingestion/{ingestion}.1"
    ]
    gathered = rules.inputs("filtering.scores")(work(rules, "filtering.scores(a)"))
    assert gathered == [f"{folder}/filtering.scores/{scores}.{b}" for b in (0, 1)] + [f"{folder}/ingestion/{ingestion}"]
    batches = next(i for i in rules.plan.instances.values() if i.name == "ingestion(a)")
    assert sorted([*batches.batch(0), *batches.batch(1)]) == [0, 1, 2, 3, 4]


def test_only_real_work_asks_for_threads_and_memory(rules: Dag) -> None:
    assert rules.threads("pretraining")(work(rules, "pretraining(0-4)")) == 2
    assert rules.threads("ingestion")(work(rules, "ingestion(a)", 0)) == 1
    assert rules.memory("ingestion")(work(rules, "ingestion(a)"), 1) == 1500
    made = next(i for i in rules.plan.instances.values() if i.name == "ingestion(a)")
    job.run_instance(rules.plan, made)
    fresh = Dag(rules.path, rules.plan)
    assert fresh.memory("ingestion")(work(fresh, "ingestion(a)"), 1) == dag.STAMP_MEMORY_MB


@pytest.mark.parametrize(("outcome", "factor"), [("out_of_memory", 2), ("bad_input", 1), ("node_failure", 1)])
def test_memory_grows_only_after_it_ran_out(rules: Dag, outcome: str, factor: int) -> None:
    wildcards = work(rules, "heldout")
    folder = Store(rules.plan.store).work("heldout", wildcards.work)
    folder.mkdir(parents=True)
    (folder / "outcome.json").write_text(json.dumps({"class": outcome, "message": "", "run": None}))
    assert rules.memory("heldout")(wildcards, 2) == 1500 * factor
    assert rules.memory("heldout")(wildcards, 1) == 1500


def test_stamps_of_what_is_gone_are_removed(rules: Dag) -> None:
    made = next(i for i in rules.plan.instances.values() if i.name == "ingestion(a)")
    job.run_batch(rules.plan, made, 0)
    job.run_batch(rules.plan, made, 1)
    job.run_instance(rules.plan, made)
    dag.prepare(rules.plan)
    stamps = [rules.plan.stamp("ingestion", w) for w in (made.digest, f"{made.digest}.0", f"{made.digest}.1")]
    assert [s.exists() for s in stamps] == [True, True, True]
    Store(rules.plan.store).discard("ingestion", made.units[1], unit=True)
    dag.prepare(rules.plan)
    assert [s.exists() for s in stamps] == [False, True, False]


def test_forced_jobs_lose_what_they_made_and_others_keep_it(rules: Dag) -> None:
    for name in ("ingestion(a)", "filtering.scores(a)"):
        job.run_instance(rules.plan, next(i for i in rules.plan.instances.values() if i.name == name))

    def fake(rule: str, wildcards: Any) -> Any:
        stamp = rules.plan.stamp(rule.replace("_", "."), wildcards.work)
        return types.SimpleNamespace(rule=types.SimpleNamespace(name=rule), wildcards=wildcards, output=[str(stamp)])

    jobs = [
        fake("ingestion", work(rules, "ingestion(a)")),
        fake("filtering_scores", work(rules, "filtering.scores(a)", 0)),
    ]
    settings = types.SimpleNamespace(forcerun={"filtering_scores"}, targets=set(), forcetargets=False, forceall=False)
    rules.discard_forced(
        types.SimpleNamespace(dag_settings=settings, dag=types.SimpleNamespace(needrun_jobs=lambda: jobs))
    )
    store = Store(rules.plan.store)
    ingestion, scores = (
        next(i for i in rules.plan.instances.values() if i.name == n) for n in ("ingestion(a)", "filtering.scores(a)")
    )
    assert store.find("ingestion", ingestion.digest) is not None
    assert store.find("filtering.scores", scores.digest) is None
    gone = [store.find("filtering.scores", key, unit=True) is None for key in scores.units]
    assert gone == [True, False, True, False, True]


def test_a_profile_that_would_lose_is_refused(monkeypatch: pytest.MonkeyPatch, rules: Dag) -> None:
    monkeypatch.setattr("sys.argv", ["snakemake", "--profile", "profiles/slurm"])
    monkeypatch.delenv(dag.PLAN, raising=False)
    with pytest.raises(ConfigError, match="--workflow-profile profiles/<name>"):
        dag.open_dag(types.SimpleNamespace(is_main_process=True))
