"""Read all manifests of a run; write `report.html`, `report.json`, `report.csv` and, of layouts, `benchmarking-best.yaml`.

The content digest covers figures and verdicts, not times: a report of the same results is the same report.
"""

import csv
import dataclasses
import io
from collections.abc import Iterator

from modalities.config import plain
from modalities.manifest import write_json, write_text
from modalities.reporting.config import ReportingSection
from modalities.reporting.facts import Facts, read_facts
from modalities.reporting.page import render
from modalities.reporting.throughput import fragment
from modalities.work import Result, Work, digest_of

FORMAT = 1
COLUMNS = ("variant", "kind", "source", "metric", "step", "value", "artefact")
Row = tuple[str, str, str, str, int | None, float | int, str]


def run(work: Work[ReportingSection]) -> Result:
    """Write the report of one run."""
    section = work.section
    facts = read_facts(work.inputs, section=section)
    write_json(work.folder / "report.json", {"format": FORMAT, "run": section.run, **plain(dataclasses.asdict(facts))})
    write_text(work.folder / "report.csv", _csv(facts))
    html = render(facts, section=section)
    write_text(work.folder / "report.html", html)
    best = fragment(facts.throughput)
    if best is not None:
        write_text(work.folder / "benchmarking-best.yaml", best)
    contents = {role: upstream.content for role, upstream in work.inputs.items()}
    return Result(
        content=digest_of(FORMAT, plain(section), contents),
        counts={"artefacts": len(facts.artefacts), "variants": len(facts.variants)},
        info={
            "run": section.run,
            "headline": facts.headline,
            "verdicts": [] if facts.study is None else plain(facts.study.verdicts),
            "seed_spread": {} if facts.study is None else plain(facts.study.seed_spread),
            "throughput": plain(facts.throughput),
        },
    )


def _csv(facts: Facts) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_rows(facts))
    return out.getvalue()


def _rows(facts: Facts) -> Iterator[Row]:
    """Yield every figure once, in long form."""
    yield from _funnel_rows(facts)
    yield from _score_rows(facts)
    yield from _study_rows(facts)


def _funnel_rows(facts: Facts) -> Iterator[Row]:
    for funnel in facts.funnels:
        for stage in funnel.stages:
            for variant in funnel.variants:
                yield variant, stage.node, funnel.source, "documents_in", None, stage.documents_in, stage.key
                yield variant, stage.node, funnel.source, "documents_out", None, stage.documents_out, stage.key
                for reason, number in stage.dropped.items():
                    yield variant, stage.node, funnel.source, f"dropped:{reason}", None, number, stage.key
                if stage.tokens is not None:
                    yield variant, stage.node, funnel.source, "tokens", None, stage.tokens, stage.key


def _score_rows(facts: Facts) -> Iterator[Row]:
    for heldout in facts.heldout:
        for source, curve in heldout.over_training.items():
            for step, value in zip(curve.steps, curve.values, strict=True):
                yield heldout.variant, "evaluation", source, "bits_per_byte", int(step), value, heldout.key
    for baseline, figures in facts.baselines.items():
        for source, value in figures.items():
            yield "", "baseline", source, f"bits_per_byte:{baseline}", None, value, ""
    for variant, tasks in facts.tasks.items():
        for task in tasks:
            yield variant, "task", task.task, task.metric, task.step, task.mean, task.key
    for layout in facts.throughput:
        for name in ("tokens_per_second", "mfu", "memory_bytes"):
            value = getattr(layout, name)
            if value is not None:
                yield layout.name, "throughput", layout.device, name, None, value, layout.key


def _study_rows(facts: Facts) -> Iterator[Row]:
    """Yield verdicts as `<outcome>:<figure>`, and what each arm cost."""
    if facts.study is None:
        return
    for verdict in facts.study.verdicts:
        for name in ("difference", "low", "high", "p_value", "margin", "detectable", "seed_deviation", "item_error"):
            value = getattr(verdict, name)
            if value is not None:
                yield verdict.arm, f"verdict:{verdict.outcome}", verdict.metric, name, None, value, ""
    for arm in facts.study.arms:
        for name in ("tokens", "flops", "device_hours", "cpu_seconds", "elapsed_seconds"):
            value = getattr(arm, name)
            if value is not None:
                yield arm.name, "cost", "", name, None, value, ""
