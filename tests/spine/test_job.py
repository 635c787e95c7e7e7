"""Jobs make each thing once, stop early where contents are equal, and leave a record when they fail."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from modalities import config, job, manifest, plan
from modalities.errors import InputError, StoreError
from modalities.plan import Instance, Plan
from modalities.store import Store
from modalities.work import Result, Work

CONFIG = """\
run: r
ingestion:
  sources:
    a: {paths: [raw/*.jsonl], language: en}
heldout: {documents: 1, min_characters: 10, max_share: 0.3}
filtering: {recipe: none}
tokenization: {train: {vocab_size: 300}}
packing: {sequence_length: 32}
pretraining:
  model: {dim: 16, layers: 1, heads: 2, kv_heads: 1, ffn_dim: 32}
  total_steps: 4
  global_batch_tokens: 128
  learning_rate: 1e-2
  schedule: {name: constant, warmup_steps: 2}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(job.INVOCATION, raising=False)
    Path("raw").mkdir()
    for number in range(3):
        lines = (json.dumps({"text": f"document {i} of file {number}, in plain English words"}) for i in range(4))
        Path(f"raw/{number}.jsonl").write_text("\n".join(lines) + "\n")
    return plan.resolve(config.parse(CONFIG, "mine.yaml"))


def instance(of: Plan, name: str) -> Instance:
    return next(i for i in of.instances.values() if i.name == name)


def make(of: Plan, *names: str) -> list[manifest.Manifest]:
    return [job.run_instance(of, instance(of, name)) for name in names]


CHAIN = ("ingestion(a)", "filtering.scores(a)", "filtering(a)")


def test_a_second_run_makes_nothing(run: Plan) -> None:
    first = make(run, *CHAIN)
    assert make(run, *CHAIN) == first
    assert [m.counts["documents_out"] for m in first[::2]] == [12, 12]
    assert not list(Path("results/store/.work").glob("*/*")), "no work is left over"
    for made in first:
        assert run.stamp(made.node, made.key).read_text() == made.content + "\n"


def test_forced_work_with_equal_contents_stops_there(run: Plan) -> None:
    before = make(run, *CHAIN)
    store = Store(run.store)
    store.discard("ingestion", before[0].key)
    for key in before[0].units:
        store.discard("ingestion", key, unit=True)
    after = make(run, *CHAIN)
    assert after[0].provenance["started"] >= before[0].provenance["started"]
    assert after[0].content == before[0].content
    assert after[1:] == before[1:], "nothing after it was made again"


def test_changed_contents_upstream_are_followed(run: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    before = make(run, *CHAIN)
    monkeypatch.setattr("modalities.filtering.decisions.run_unit", _touched("modalities.filtering.decisions"))
    store = Store(run.store)
    store.discard("filtering", before[2].key)
    store.discard("filtering", before[2].units[0], unit=True)
    after = make(run, *CHAIN)
    assert after[:2] == before[:2]
    assert after[2].content != before[2].content
    signatures = make(run, "heldout", "deduplication.signatures(a)")[1]
    assert signatures.upstream["filtering"]["content"] == after[2].content


def _touched(module: str) -> Any:
    import importlib

    real = importlib.import_module(module).run_unit

    def run_unit(work: Work[Any]) -> Result:
        made: Result = real(work)
        return Result(content="other" + made.content, counts=made.counts, dropped=made.dropped, info=made.info)

    return run_unit


def test_a_unit_that_is_gone_or_damaged_is_made_again(run: Plan) -> None:
    made = make(run, "ingestion(a)")[0]
    store = Store(run.store)
    unit = store.folder("ingestion", made.units[1], unit=True)
    (unit / "documents.parquet").write_bytes(b"short")
    store.discard("ingestion", made.key)
    again = make(run, "ingestion(a)")[0]
    assert again.content == made.content
    assert store.find("ingestion", made.units[1], unit=True) is not None
    assert list(Path("results/store/.trash").glob("*/ingestion/*")), "what was damaged is kept in the trash"


def test_bad_input_fails_once_per_invocation(run: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run_unit(work: Work[Any]) -> Result:
        calls.append(work.label)
        raise InputError("raw/0.jsonl: line 3: expected text, got 5")

    monkeypatch.setattr("modalities.ingestion.stage.run_unit", run_unit)
    monkeypatch.setenv(job.INVOCATION, "one")
    with pytest.raises(InputError):
        job.run_batch(run, instance(run, "ingestion(a)"), 0)
    with pytest.raises(StoreError, match=r"failed for good: raw/0\.jsonl: line 3"):
        job.run_batch(run, instance(run, "ingestion(a)"), 0)
    assert len(calls) == 1
    monkeypatch.setenv(job.INVOCATION, "two")
    with pytest.raises(InputError):
        job.run_batch(run, instance(run, "ingestion(a)"), 0)
    outcomes = [json.loads(p.read_text()) for p in Path("results/store/.work").glob("*/*/outcome.json")]
    assert [(o["class"], o["run"]) for o in outcomes] == [("bad_input", "two")]


def test_two_jobs_at_once_make_it_once(run: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = __import__("modalities.ingestion.stage", fromlist=["run_unit"]).run_unit
    inside = threading.Event()

    def run_unit(work: Work[Any]) -> Result:
        calls.append(work.key)
        inside.set()
        threading.Event().wait(0.5)
        made: Result = real(work)
        return made

    monkeypatch.setattr("modalities.ingestion.stage.run_unit", run_unit)
    one = threading.Thread(target=job.run_instance, args=(run, instance(run, "ingestion(a)")))
    one.start()
    inside.wait(10)
    job.run_instance(run, instance(run, "ingestion(a)"))
    one.join()
    assert len(calls) == len(set(calls)) == 3


def test_lost_documents_stop_the_run(run: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    make(run, *CHAIN[:2])
    real = __import__("modalities.filtering.decisions", fromlist=["run_unit"]).run_unit

    def run_unit(work: Work[Any]) -> Result:
        made: Result = real(work)
        counts = dict(made.counts) | {k: made.counts[k] - 1 for k in ("documents_in", "documents_out")}
        return Result(content=made.content, counts=counts, dropped=made.dropped, info=made.info)

    monkeypatch.setattr("modalities.filtering.decisions.run_unit", run_unit)
    with pytest.raises(StoreError, match="expected the 12 documents of ingestion, got 9"):
        make(run, CHAIN[2])


def test_missing_upstream_names_the_command(run: Plan) -> None:
    with pytest.raises(StoreError, match="run `modalities ingestion`"):
        make(run, "filtering.scores(a)")
