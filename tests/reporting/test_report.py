"""The report of runs that never happened: figures, gaps, hostile text."""

import base64
import csv
import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modalities.config import plain
from modalities.errors import StoreError
from modalities.models import architectures
from modalities.models.llama_config import LlamaConfig
from modalities.reporting.charts import Line, line_chart, short
from modalities.reporting.config import AnalysisConfig
from modalities.reporting.instances import read_instances
from modalities.reporting.study import split_names
from modalities.reporting.training import Curve, read_metrics, thin

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&{{ 7*7 }}"


def load(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return data


def test_funnels_count_everything_and_show_examples(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    made = fake_run(documents=300)
    data = load(report(made.inputs)[0])
    for funnel in data["funnels"]:
        stages = funnel["stages"]
        assert [s["node"] for s in stages] == ["ingestion", "filtering", "deduplication", "tokenization"]
        assert stages[0]["documents_in"] == 300
        for before, after in itertools.pairwise(stages):
            assert before["documents_out"] == after["documents_in"]
        assert all(s["balanced"] for s in stages)
        kept = sum(b["kept"] for b in funnel["lengths"])
        assert kept == sum(b["kept"] for b in funnel["languages"]) == stages[2]["documents_out"]
        assert kept + sum(b["dropped"] for b in funnel["lengths"]) == 300
        shown = {(e["node"], e["reason"]) for e in funnel["examples"]}
        assert {(s["node"], r) for s in stages for r, n in s["dropped"].items() if n > 0} == shown
        assert max(sum(e["reason"] == r for e in funnel["examples"]) for _, r in shown) == 3


def test_a_run_that_does_not_add_up_says_so(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    made = fake_run(documents=60)
    role = "base/filtering(help)"
    upstream = made.inputs[role]
    counts = dict(upstream.manifest.counts) | {"documents_out": 1}
    made.inputs[role] = dataclasses.replace(upstream, manifest=dataclasses.replace(upstream.manifest, counts=counts))
    html = (report(made.inputs)[0] / "report.html").read_text()
    assert "does not add up" in html
    assert '<b class="bad">no</b>' in html


def test_figures_are_those_of_the_last_step(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    made = fake_run(documents=60)
    folder, result = report(made.inputs)
    info = made.inputs["base/evaluation(600/heldout)"].manifest.info
    expected = {"all": info["bits_per_byte"]} | {s: f["bits_per_byte"] for s, f in info["sources"].items()}
    assert result.info["headline"]["bits_per_byte"] == pytest.approx(expected)
    assert load(folder)["heldout"][0]["over_training"]["help"]["steps"] == [200, 400, 600]
    assert f"{info['bits_per_byte']:.4f}" in (folder / "report.html").read_text()
    rows = list(csv.DictReader((folder / "report.csv").open()))
    told = [r for r in rows if r["kind"] == "evaluation" and r["source"] == "all" and r["step"] == "600"]
    assert [float(r["value"]) for r in told] == [info["bits_per_byte"]]


def test_what_is_missing_is_left_out(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    made = fake_run(documents=60)
    data_only = {r: u for r, u in made.inputs.items() if not re.search("pretraining|conversion|evaluation|packing", r)}
    html = (report(data_only)[0] / "report.html").read_text()
    assert 'id="data"' in html
    for absent in ("training", "tasks", "samples", "results", "verdicts"):
        assert f'id="{absent}"' not in html
    assert "Traceback" not in (report({})[0] / "report.html").read_text()


def test_same_results_same_content(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    made = fake_run(documents=60)
    first = report(made.inputs)[1].content
    later = {
        r: dataclasses.replace(u, manifest=dataclasses.replace(u.manifest, provenance={"elapsed_seconds": 1e6}))
        for r, u in made.inputs.items()
    }
    assert report(later)[1].content == first
    assert report(made.inputs, run_name="other")[1].content != first


def test_the_page_loads_nothing_and_hostile_text_stays_text(
    fake_run: Callable[..., Any], report: Callable[..., Any]
) -> None:
    made = fake_run(documents=60, hostile=HOSTILE)
    folder, _ = report(made.inputs, run_name=HOSTILE, config_yaml=f"run: {HOSTILE}\n")
    html = (folder / "report.html").read_text()
    assert html.count("<script") == 1
    assert html.count("</script>") == 1
    assert "<img" not in html
    assert "{{ 7*7 }}" in html
    assert re.findall(r'(?:src|href)="(?!#|data:)([^"]*)"', html) == []
    assert "@import" not in html
    assert "url(" not in html


def test_the_policy_names_this_script_and_style(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    html = (report(fake_run(documents=60).inputs)[0] / "report.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    for tag in ("script", "style"):
        body = re.search(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert body is not None
        digest = base64.b64encode(hashlib.sha256(body[1].encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in policy[1]
    assert "default-src &#39;none&#39;" in policy[1]


def test_an_unknown_role_is_an_error(fake_run: Callable[..., Any]) -> None:
    upstream = next(iter(fake_run(documents=60).inputs.values()))
    with pytest.raises(StoreError, match="expected a role"):
        read_instances({"nonsense": upstream})


def test_roles_come_apart(fake_run: Callable[..., Any]) -> None:
    upstream = next(iter(fake_run(documents=60).inputs.values()))
    roles = [
        "a/b=1,seed=2/evaluation(200/heldout)",
        "base/filtering.scores(my source)",
        "base/packing",
        "base/pretraining(0-200)",
    ]
    found = {(i.variant, i.node, i.scope, i.last_step) for i in read_instances(dict.fromkeys(roles, upstream))}
    assert found == {
        ("a/b=1,seed=2", "evaluation", "200/heldout", 200),
        ("base", "filtering.scores", "my source", 0),
        ("base", "packing", "", 0),
        ("base", "pretraining", "0-200", 200),
    }


def test_metrics_that_are_cut_off_are_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    with pytest.raises(StoreError, match=r"metrics.jsonl:2: expected a JSON object"):
        read_metrics(path)


def test_thinning_keeps_ends_and_means() -> None:
    curve = Curve(steps=tuple(map(float, range(1000))), values=tuple(float(i % 2) for i in range(1000)))
    thinned = thin(curve, 52)
    assert len(thinned.steps) == 52
    assert (thinned.steps[0], thinned.steps[-1]) == (0.0, 999.0)
    assert all(0.4 < v < 0.6 for v in thinned.values[1:-1])
    assert thin(curve, 1000) is curve


@pytest.mark.parametrize("values", [(1.0, 1.0), (0.0, -3.0), (5.0,), (1e-9, 1e12)])
def test_charts_stay_inside_their_frame(values: tuple[float, ...]) -> None:
    for log in (False, True):
        lines = [Line(name="<x>", curve=Curve(steps=tuple(map(float, range(len(values)))), values=values))]
        svg = line_chart(lines, title="t", y_label="y", log=log)
        if svg is None:
            assert log
            continue
        points = [float(p) for pair in re.findall(r'points="([^"]*)"', svg)[0].split() for p in pair.split(",")]
        assert all(0 <= x <= 560 for x in points[::2])
        assert all(0 <= y <= 300 for y in points[1::2])
        assert "<x>" not in svg
    assert line_chart([], title="t", y_label="y") is None


def test_ticks_are_short() -> None:
    assert [short(v) for v in (0, 0.0003, 0.25, 9000, 15_000, 1_200_000)] == [
        "0",
        "3e-4",
        "0.25",
        "9000",
        "15k",
        "1.2M",
    ]


# --- studies ---------------------------------------------------------------------------------------------------------


def test_variants_fall_into_arms() -> None:
    assert split_names(["a=1,seed=3", "a=1,seed=4", "seed=3", "plain"]) == {
        "a=1,seed=3": ("a=1", 3),
        "a=1,seed=4": ("a=1", 4),
        "seed=3": ("base", 3),
        "plain": ("plain", 0),
    }


def test_a_planted_effect_is_found_and_a_planted_null_is_not(
    fake_run: Callable[..., Any], report: Callable[..., Any]
) -> None:
    made = fake_run(arms={"baseline": 0.0, "corrupted": 0.05, "same": 0.0}, seeds=(1, 2, 3, 4), documents=40)
    folder, result = report(made.inputs)
    told = {(v["arm"], v["metric"]): v["outcome"] for v in result.info["verdicts"]}
    assert told["corrupted", "bits_per_byte"] == "worse"
    assert told["same", "bits_per_byte"] in ("equivalent", "undecided")
    assert ("corrupted", "bits_per_byte:help") in told
    assert ("corrupted", "accuracy:continuation") in told
    chosen = {v["metric"] for v in result.info["verdicts"] if v["confirmatory"]}
    assert chosen == {"bits_per_byte"}
    study = load(folder)["study"]
    assert [a["seeds"] for a in study["arms"]] == [[1, 2, 3, 4]] * 3
    assert all(c["equal"] for c in study["checks"])
    assert (folder / "report.html").stat().st_size < 5_000_000


def test_the_baseline_can_be_named(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    made = fake_run(arms={"first": 0.05, "second": 0.0}, seeds=(1, 2, 3), documents=40)
    result = report(made.inputs, analysis=AnalysisConfig(baseline="second"))[1]
    told = {v["arm"]: v["outcome"] for v in result.info["verdicts"] if v["confirmatory"]}
    assert told == {"first": "worse"}


def test_other_held_out_documents_no_verdict(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    made = fake_run(arms={"baseline": 0.0, "arm": 0.05}, seeds=(1, 2), documents=40)
    role = "arm,seed=2/heldout"
    upstream = made.inputs[role]
    made.inputs[role] = dataclasses.replace(
        upstream, manifest=dataclasses.replace(upstream.manifest, content="other", key="o")
    )
    folder, result = report(made.inputs)
    assert result.info["verdicts"] == []
    assert "different held-out documents" in load(folder)["study"]["refused"]


def test_differences_that_nobody_asked_for_are_named(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    made = fake_run(arms={"baseline": 0.0, "arm": 0.0}, seeds=(1, 2), documents=40)
    for role, upstream in list(made.inputs.items()):
        if role.startswith("arm,") and "pretraining" in role:
            info = dict(upstream.manifest.info) | {"tokens_seen": 7}
            manifest = dataclasses.replace(
                upstream.manifest, info=info, numerics={"device": "cuda"}, key=upstream.manifest.key + "x"
            )
            made.inputs[role] = dataclasses.replace(upstream, manifest=manifest)
    labels = {v: {"pretraining.total_steps": 1 if "arm" in v else 2} for v in {r.split("/")[0] for r in made.inputs}}
    folder, _ = report(made.inputs, labels=labels)
    checks = {c["name"]: c for c in load(folder)["study"]["checks"]}
    assert (checks["tokens seen"]["equal"], checks["tokens seen"]["asked"]) == (False, True)
    assert (checks["numerics"]["equal"], checks["numerics"]["asked"]) == (False, False)
    assert "Not asked for, but different: numerics." in (folder / "report.html").read_text()


def test_one_seed_shows_a_difference_and_no_verdict(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    made = fake_run(arms={"baseline": 0.0, "arm": 0.05}, documents=40)
    told = report(made.inputs)[1].info["verdicts"]
    assert {v["outcome"] for v in told} == {"no verdict"}
    assert any("one seed" in n for n in told[0]["notes"])


def test_shared_instances_are_listed_once(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    made = fake_run(arms={"baseline": 0.0, "arm": 0.0}, seeds=(1, 2), documents=40)
    data = load(report(made.inputs)[0])
    keys = [a["key"] for a in data["artefacts"]]
    assert len(keys) == len(set(keys))
    assert [len(f["variants"]) for f in data["funnels"]] == [4, 4]


# --- tasks and cost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("means", "trusted"),
    [((0.30, 0.34, 0.38, 0.45), True), ((0.45, 0.38, 0.34, 0.32), False), ((0.2, 0.22, 0.24, 0.26), False)],
)
def test_tasks_are_trusted_above_chance_and_getting_better(
    fake_run: Callable[..., Any], report: Callable[..., Any], means: tuple[float, ...], trusted: bool
) -> None:
    made = fake_run(documents=60)
    del made.inputs["base/evaluation(600/tasks)"]
    for number, mean in enumerate(means):
        step = 150 * (number + 1)
        metrics = {"accuracy": {"mean": mean, "stderr": 0.02, "items": 400, "chance": 0.25}}
        info = {"suite": "tasks", "step": step, "tasks": {"choice": {"items": 400, "metrics": metrics}}}
        made.add("base", made.upstream("evaluation", f"{step}/tasks", info=info))
    (task,) = load(report(made.inputs)[0])["tasks"]["base"]
    assert (task["step"], task["mean"], task["trusted"]) == (600, means[-1], trusted)
    assert abs(task["trend"]) == pytest.approx(1.0)
    assert task["noise"] >= 0


def test_flops_are_those_of_the_architecture(fake_run: Callable[..., Any], report: Callable[..., Any]) -> None:
    model = LlamaConfig(dim=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn_dim=128, vocab_size=512)
    made = fake_run(documents=60)
    role = "base/pretraining(400-600)"
    info = dict(made.inputs[role].manifest.info) | {"model": plain(model), "sequence_length": 128}
    manifest = dataclasses.replace(made.inputs[role].manifest, info=info)
    made.inputs[role] = dataclasses.replace(made.inputs[role], manifest=manifest)
    (training,) = load(report(made.inputs)[0])["training"]
    expected = architectures.counts_module(model).flops_per_token(model, sequence_length=128) * 8192 * 600
    assert training["flops"] == expected
