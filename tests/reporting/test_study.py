"""Studies on the page: costs, trust in tasks, archived seed variance, layouts, size of the page."""

import csv
import dataclasses
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from modalities import archive
from modalities.config import plain
from modalities.documents import GroupWriter
from modalities.errors import ConfigError
from modalities.manifest import Manifest
from modalities.manifest import write as write_manifest
from modalities.models.llama_config import LlamaConfig
from modalities.reporting.config import AnalysisConfig, ReportingConfig, section
from modalities.reporting.trust import read_trust
from modalities.store import Store
from modalities.work import digest_of

ITEMS = pa.schema([("task", pa.string()), ("item", pa.int64()), ("group", pa.string()), ("accuracy", pa.float64())])


def load(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return data


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "report.csv").open()))


def change(made: Any, role: str, **fields: Any) -> None:
    upstream = made.inputs[role]
    made.inputs[role] = dataclasses.replace(upstream, manifest=dataclasses.replace(upstream.manifest, **fields))


# --- fairness and cost -----------------------------------------------------------------------------------------------


def test_what_differs_unasked_is_named_beside_the_verdict(
    fake_run: Callable[..., Any], report: Callable[..., Any]
) -> None:
    made = fake_run(arms={"baseline": 0.0, "same": 0.0, "longer": 0.0}, seeds=(1, 2), documents=40)
    for role, upstream in list(made.inputs.items()):
        if role.startswith("longer,") and "pretraining" in role:
            changed = dict(upstream.manifest.section) | {"warmup_steps": 99, "global_batch_sequences": 32}
            change(made, role, section=changed, key=upstream.manifest.key + "x")
    folder, _ = report(made.inputs)
    study = load(folder)["study"]
    assert [a["unasked"] for a in study["arms"]] == [[], [], ["tokens per step", "schedule"]]
    html = (folder / "report.html").read_text()
    assert html.count("Not asked for, but different: tokens per step, schedule.</span>") == len(
        [v for v in study["verdicts"] if v["arm"] == "longer"]
    )


def test_costs_are_sums_over_seeds(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    model = LlamaConfig(dim=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn_dim=128, vocab_size=512)
    made = fake_run(arms={"baseline": 0.0, "arm": 0.0}, seeds=(1, 2, 3), documents=40)
    for role, upstream in list(made.inputs.items()):
        if "pretraining(" in role:
            info = dict(upstream.manifest.info) | {"model": plain(model), "sequence_length": 128}
            change(made, role, info=info, numerics={"world_size": 4}, provenance={"elapsed_seconds": 1800.0})
    folder, _ = report(made.inputs)
    arm = load(folder)["study"]["arms"][1]
    assert arm["device_hours"] == pytest.approx(3 * 3 * 0.5 * 4)  # seeds, segments, hours, ranks
    single = next(t for t in load(folder)["training"] if t["variant"] == "arm,seed=1")["flops"]
    assert arm["flops"] == pytest.approx(3 * single)
    told = {r["metric"]: float(r["value"]) for r in rows(folder) if r["kind"] == "cost" and r["variant"] == "arm"}
    assert told["device_hours"] == arm["device_hours"]


def test_verdicts_are_in_the_csv_and_lead_to_their_evaluations(
    fake_run: Callable[..., Any], report: Callable[..., Any]
) -> None:
    made = fake_run(arms={"baseline": 0.0, "worse": 0.05}, seeds=(1, 2, 3), documents=40)
    folder, result = report(made.inputs)
    verdict = next(v for v in result.info["verdicts"] if v["metric"] == "bits_per_byte")
    told = {r["metric"]: r for r in rows(folder) if r["kind"].startswith("verdict") and r["source"] == "bits_per_byte"}
    assert told["difference"]["kind"] == "verdict:worse"
    assert float(told["high"]["value"]) == verdict["high"]
    html = (folder / "report.html").read_text()
    arm = next(a for a in load(folder)["study"]["arms"] if a["name"] == "worse")
    row = html[html.index('<tr id="arm-2">') :].split("</tr>")[0]
    assert len(arm["evaluations"]) == 3
    assert all(f'href="#a-{key}"' in row for key in arm["evaluations"])
    assert html.index('id="verdicts"') < html.index('class="tiles"') < html.index('id="results"')


# --- tasks -----------------------------------------------------------------------------------------------------------


def add_tasks(made: Any, variant: str, accuracy: dict[str, tuple[float, float]], *, items: int = 300) -> None:
    """Replace the task suite of a variant: task -> true accuracy and chance."""
    rng = np.random.default_rng(zlib.crc32(variant.encode()))
    metrics, columns = {}, []
    for number, (task, (share, chance)) in enumerate(accuracy.items()):
        hits = (rng.random(items) < share).astype(float)
        error = float(hits.std() / items**0.5)
        figures = {"mean": float(hits.mean()), "stderr": error, "items": items, "chance": chance}
        metrics[task] = {"items": items, "metrics": {"accuracy": figures}}
        columns.append((task, [f"{number}-{i}" for i in range(items)], hits))
    made.inputs.pop(f"{variant}/evaluation(600/tasks)", None)
    upstream = made.upstream(
        "evaluation", "600/tasks", info={"suite": "tasks", "step": 600, "tasks": metrics}, salt=f"{variant} new"
    )
    with GroupWriter(upstream.folder / "items.parquet", ITEMS) as writer:
        for task, groups, hits in columns:
            table = {"task": [task] * items, "item": list(range(items)), "group": groups, "accuracy": hits}
            writer.write(pa.table(table, schema=ITEMS))
    made.add(variant, upstream)


def test_a_task_at_chance_is_shown_and_stays_out_of_the_mean(
    fake_run: Callable[..., Any], report: Callable[..., Any]
) -> None:
    made = fake_run(arms={"baseline": 0.0, "arm": 0.0}, seeds=(1, 2), documents=40)
    for variant in {role.split("/")[0] for role in made.inputs}:
        add_tasks(made, variant, {"easy": (0.8, 0.25), "fair": (0.5, 0.25), "hopeless": (0.25, 0.25)})
    folder, result = report(made.inputs)
    data = load(folder)
    assert {t["task"]: t["trusted"] for t in data["trust"]} == {"easy": True, "fair": True, "hopeless": False}
    by_task = {t["task"]: t["by_arm"]["arm"] for t in data["trust"]}
    arm = next(a for a in data["study"]["arms"] if a["name"] == "arm")
    assert arm["task_mean"] == pytest.approx((by_task["easy"] + by_task["fair"]) / 2)
    verdict = next(v for v in result.info["verdicts"] if v["metric"] == "accuracy")
    base = next(a for a in data["study"]["arms"] if a["name"] == "baseline")
    assert verdict["difference"] == pytest.approx(arm["task_mean"] - base["task_mean"])
    assert verdict["num_items"] == 600
    assert "hopeless" in (folder / "report.html").read_text()


def test_trust_needs_a_majority_of_variants() -> None:
    @dataclasses.dataclass
    class One:
        task: str
        metric: str
        mean: float
        noise: float | None
        gain: float | None
        trend: float | None
        above_chance: bool | None

    def told(*facts: tuple[bool | None, float | None]) -> Any:
        tasks = {
            f"v{i}": [One("t", "accuracy", 0.1 * i, 0.01, None, trend, above)] for i, (above, trend) in enumerate(facts)
        }
        return read_trust(tasks, {v: v for v in tasks})[0]  # type: ignore[arg-type]

    assert told((True, None), (True, None), (False, None)).trusted is True
    assert told((True, None), (False, None)).trusted is False
    assert told((True, 0.9), (True, -0.2), (True, -0.3)).trusted is False
    assert told((None, None)).trusted is None
    assert told((True, None), (True, None)).signal == pytest.approx(0.1)


# --- archive ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def finished_study(fake_run: Callable[..., Any], report: Callable[..., Any], tmp_path: Path) -> tuple[Any, Path]:
    """A study of two arms and three seeds whose report lies in a store."""
    made = fake_run(arms={"baseline": 0.0, "arm": 0.05}, seeds=(1, 2, 3), documents=40)
    result = report(made.inputs)[1]
    upstream = {
        r: {"node": u.manifest.node, "key": u.manifest.key, "content": u.content} for r, u in made.inputs.items()
    }
    for number, left_out in enumerate(("", "seed=3")):
        kept = {r: v for r, v in upstream.items() if not left_out or left_out not in r}
        spread = {m: dict(s) | {"df": s["df"] - 2 * number} for m, s in result.info["seed_spread"].items()}
        key = digest_of("report", number)
        place = tmp_path / "finished" / "reporting" / key
        place.mkdir(parents=True)
        manifest = Manifest(
            node="reporting", key=key, label="reporting", version=1, section={}, upstream=kept, content=key,
            info=dict(result.info) | {"seed_spread": spread},
        )  # fmt: skip
        write_manifest(place, manifest)
    return made, tmp_path / "finished"


def test_one_seed_is_shown_with_the_archived_variance(
    finished_study: tuple[Any, Path], report: Callable[..., Any], tmp_path: Path
) -> None:
    made, store = finished_study
    target = tmp_path / "archive.json"
    assert archive.write(store, target) > 0
    entries = json.loads(target.read_text())["entries"]
    chosen = [e for e in entries if e["metric"] == "bits_per_byte"]
    assert [e["df"] for e in chosen] == [4], "the report of two of the three seeds is the same study"
    arms = np.array([[_bits(made, f"{a},seed={s}") for s in (1, 2, 3)] for a in ("baseline", "arm")])
    assert chosen[0]["deviation"] == pytest.approx(float(np.sqrt(arms.var(axis=1, ddof=1).mean())))
    single = {r: u for r, u in made.inputs.items() if "seed=1/" in r}
    told = report(single, analysis=AnalysisConfig(archive=target))[1].info["verdicts"]
    verdict = next(v for v in told if v["metric"] == "bits_per_byte")
    assert verdict["outcome"] == "no verdict"
    assert verdict["low"] < verdict["difference"] < verdict["high"]
    assert any("archived deviation over seeds" in note for note in verdict["notes"])


def _bits(made: Any, variant: str) -> float:
    return float(made.inputs[f"{variant}/evaluation(600/heldout)"].manifest.info["bits_per_byte"])


def test_studies_of_another_size_are_not_used(
    finished_study: tuple[Any, Path], report: Callable[..., Any], tmp_path: Path
) -> None:
    made, _ = finished_study
    entries = [{"metric": "bits_per_byte", "parameters": 9, "tokens": 9, "deviation": 0.1, "df": 4, "run": "small"}]
    path = tmp_path / "small.json"
    path.write_text(json.dumps({"format": 1, "entries": entries}))
    single = {r: u for r, u in made.inputs.items() if "seed=1/" in r}
    told = report(single, analysis=AnalysisConfig(archive=path))[1].info["verdicts"]
    assert all(v["low"] is None for v in told)


def test_the_archive_counts_by_its_contents(tmp_path: Path) -> None:
    def made(name: str, text: str) -> Any:
        (tmp_path / name).write_text(text)
        analysis = AnalysisConfig(archive=tmp_path / name)
        return section(ReportingConfig(), analysis, run="r", config_yaml="", variants={}).archive

    empty = json.dumps({"format": 1, "entries": []})
    one = json.dumps({"format": 1, "entries": [{"metric": "m", "parameters": 1, "tokens": 1, "deviation": 1, "df": 2}]})
    assert made("a.json", empty) == made("b.json", empty) == ()
    assert made("a.json", one)[0].df == 2
    with pytest.raises(ConfigError, match=r"format: expected 1, got 7"):
        made("c.json", json.dumps({"format": 7, "entries": []}))
    with pytest.raises(ConfigError, match=r"archive: expected a file, got .*nowhere"):
        section(ReportingConfig(), AnalysisConfig(archive=Path("nowhere")), run="r", config_yaml="", variants={})


def test_an_empty_store_has_no_studies(tmp_path: Path) -> None:
    assert archive.collect(Store(tmp_path)) == []


# --- layouts ---------------------------------------------------------------------------------------------------------


def layout(made: Any, name: str, speed: float | None, **setting: Any) -> None:
    info: dict[str, Any] = {
        "name": name,
        "device": "2 x <CPU>",
        "outcome": "measured",
        "setting": {"world_size": 1} | setting,
    }
    if speed is None:
        info["outcome"] = "out of memory"
    else:
        info |= {"tokens_per_second": speed, "mfu": 0.3, "memory_bytes": 2**30}
    made.add("base", made.upstream("pretraining.benchmarking", name, info=info))


def test_the_fastest_layout_is_written_as_a_fragment(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    made = fake_run(documents=60)
    layout(made, "base", 1000.0)
    layout(made, "two", 1800.0, world_size=2, layout={"strategy": "ddp"})
    layout(made, "big", None, micro_batch=64)
    folder, result = report(made.inputs)
    assert yaml.safe_load((folder / "benchmarking-best.yaml").read_text()) == {
        "pretraining": {"numerics": {"world_size": 2, "layout": {"strategy": "ddp"}}}
    }
    assert {t["name"]: (t["outcome"], t["best"]) for t in result.info["throughput"]} == {
        "base": ("measured", False),
        "two": ("measured", True),
        "big": ("out of memory", False),
    }
    told = {(r["variant"], r["metric"]): r["value"] for r in rows(folder) if r["kind"] == "throughput"}
    assert float(told["two", "tokens_per_second"]) == 1800.0
    assert ("big", "tokens_per_second") not in told
    html = (folder / "report.html").read_text()
    assert "out of memory" in html
    assert "2 x &lt;CPU&gt;" in html


def test_without_a_measurement_there_is_no_fragment(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    made = fake_run(documents=60)
    layout(made, "big", None)
    assert not (report(made.inputs)[0] / "benchmarking-best.yaml").exists()


# --- size ------------------------------------------------------------------------------------------------------------


def test_a_study_of_24_arms_stays_below_5_mb(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    arms = {f"recipe=variant-{i},learning_rate={i}e-3": 0.001 * i for i in range(24)}
    made = fake_run(arms=arms, seeds=(1, 2), documents=40)
    folder, result = report(made.inputs)
    assert len({v["arm"] for v in result.info["verdicts"]}) == 23
    assert (folder / "report.html").stat().st_size < 5_000_000
