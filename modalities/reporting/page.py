"""`report.html`: one page that opens offline and asks for nothing.

All text is escaped by the template engine. The page's policy allows this very script and this very style sheet, by their hashes,
and nothing else: text of a corpus that slipped through would still not run, nor load anything.
"""

import base64
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from modalities.reporting import charts
from modalities.reporting.charts import Bar, Level, Line
from modalities.reporting.config import ReportingSection
from modalities.reporting.facts import Facts
from modalities.reporting.funnel import Funnel
from modalities.reporting.scores import ALL
from modalities.reporting.study import split_names
from modalities.reporting.training import Curve

TEMPLATES = Path(__file__).parent / "templates"
PANELS = (
    ("loss", "Training loss", "nats per token", "linear"),
    ("learning_rate", "Learning rate", "", "from zero"),
    ("grad_norm", "Gradient norm", "before clipping", "log"),
    ("tokens_per_second", "Throughput", "tokens per second", "from zero"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """A chart with its caption and legend."""

    title: str
    svg: Markup
    legend: Sequence[tuple[str, int]] = ()
    note: str = ""


def render(facts: Facts, *, section: ReportingSection) -> str:
    """Return the page."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        whole=whole,
        size=size,
        seconds=seconds,
        share=share,
        significant=significant,
        short=charts.short,
        rough=rough,
        signed=signed,
    )
    script, style = ((TEMPLATES / f"report.{kind}").read_text(encoding="utf-8") for kind in ("js", "css"))
    colours = _colours(facts)
    return environment.get_template("report.html").render(
        facts=facts,
        section=section,
        title=section.reporting.title if section.reporting.title is not None else section.run,
        script=Markup(script),
        style=Markup(style),
        policy=f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        all=ALL,
        bar=charts.bar,
        training_panels=_training_panels(facts, colours),
        heldout_panels=_heldout_panels(facts, colours),
        funnels=[(funnel, _funnel_panels(funnel)) for funnel in facts.funnels],
        unbalanced=[a for a in facts.artefacts if a.balanced is False],
        heldout_rows=heldout_rows(facts),
        forests=_forests(facts, colours),
        flow=flow(facts),
        links={a.key for a in facts.artefacts},
    )


def _forests(facts: Facts, colours: Mapping[str, tuple[str, int]]) -> list[Panel]:
    """One chart per confirmatory metric: each arm's difference with its interval, and the margin around zero."""
    if facts.study is None:
        return []
    numbers = dict(colours.values())
    panels = []
    for metric in dict.fromkeys(v.metric for v in facts.study.verdicts if v.confirmatory):
        rows = [v for v in facts.study.verdicts if v.metric == metric]
        bars = [
            Bar(name=v.arm, value=v.difference, low=v.low, high=v.high, note=v.outcome, colour=numbers[v.arm])
            for v in rows
        ]
        title = f"Difference from {facts.study.baseline} in {metric}"
        svg = charts.forest(
            bars, title=title, x_label=f"{metric}, arm minus {facts.study.baseline}", margin=rows[0].margin
        )
        panels.append(Panel(title=title, svg=svg, note="intervals; the shaded span is the margin"))
    return panels


def flow(facts: Facts) -> list[dict[str, Any]]:
    """Return the funnels side by side: per source and stage the documents that each arm keeps; empty without arms that differ."""
    if facts.study is None or all(len(f.variants) == len(facts.variants) for f in facts.funnels):
        return []
    names = split_names(facts.variants)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for funnel in facts.funnels:
        for stage in funnel.stages:
            row = rows.setdefault(
                (funnel.source, stage.node), {"source": funnel.source, "node": stage.node, "arms": {}}
            )
            for arm in dict.fromkeys(names[v][0] for v in funnel.variants):
                row["arms"][arm] = stage
    return list(rows.values())


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _colours(facts: Facts) -> dict[str, tuple[str, int]]:
    """Return variant -> arm and its colour; seeds of an arm share one."""
    names = split_names(facts.variants)
    order = (
        [a.name for a in facts.study.arms]
        if facts.study is not None
        else list(dict.fromkeys(a for a, _ in names.values()))
    )
    return {variant: (arm, order.index(arm)) for variant, (arm, _) in names.items()}


def _training_panels(facts: Facts, colours: Mapping[str, tuple[str, int]]) -> list[Panel]:
    panels = []
    for name, title, unit, scale in PANELS:
        lines = _study_lines({t.variant: t.curves[name] for t in facts.training if name in t.curves}, colours)
        svg = charts.line_chart(lines, title=title, y_label=unit, log=scale == "log", from_zero=scale == "from zero")
        if svg is not None:
            panels.append(Panel(title=title, svg=svg, legend=_arm_legend(facts, colours)))
    return panels


def _arm_legend(facts: Facts, colours: Mapping[str, tuple[str, int]]) -> list[tuple[str, int]]:
    arms = dict.fromkeys(colours.values())
    return list(arms) if len(facts.variants) > 1 else []


def _heldout_panels(facts: Facts, colours: Mapping[str, tuple[str, int]]) -> list[Panel]:
    """One chart of all sources for a single variant; one chart per source, arms as lines, for a study."""
    curves = {h.variant: h.over_training for h in facts.heldout}
    for training in facts.training:
        longer = {
            s: c
            for s, c in training.validation.items()
            if len(c.steps) > len(curves.get(training.variant, {}).get(s, c).steps)
        }
        if training.variant not in curves and longer:
            curves[training.variant] = longer
    sources = list(dict.fromkeys(s for own in curves.values() for s in own))
    if not sources:
        return []
    if len(curves) == 1:
        own = next(iter(curves.values()))
        lines = [Line(name=s, curve=own[s], colour=i, dots=True) for i, s in enumerate(sources)]
        levels = [
            Level(name=f"{baseline}, {s}", value=figures[s], colour=sources.index(s))
            for baseline, figures in facts.baselines.items()
            for s in sources
            if s in figures and (s != ALL or len(sources) == 1)
        ]
        svg = charts.line_chart(
            lines, title="Held-out bits per byte over training", y_label="bits per byte", levels=levels
        )
        legend = [(s, i) for i, s in enumerate(sources)]
        return [] if svg is None else [Panel(title="Held-out bits per byte over training", svg=svg, legend=legend)]
    panels = []
    for source in sources:
        lines = _study_lines({v: own[source] for v, own in curves.items() if source in own}, colours)
        title = "All held-out documents" if source == ALL else source
        svg = charts.line_chart(lines, title=f"Bits per byte: {title}", y_label="bits per byte")
        if svg is not None:
            panels.append(Panel(title=title, svg=svg, legend=_arm_legend(facts, colours)))
    return panels


def _study_lines(curves: Mapping[str, Curve], colours: Mapping[str, tuple[str, int]]) -> list[Line]:
    """One line per arm: the mean over seeds with their range as a band; single curves where steps differ."""
    grouped: dict[tuple[str, int], list[Curve]] = {}
    for variant, curve in curves.items():
        grouped.setdefault(colours[variant], []).append(curve)
    lines = []
    for (arm, colour), own in grouped.items():
        if len({c.steps for c in own}) > 1:
            lines += [Line(name=arm, curve=c, colour=colour, dots=True) for c in own]
            continue
        columns = list(zip(*(c.values for c in own), strict=True))
        steps = own[0].steps
        mean = Curve(steps=steps, values=tuple(sum(c) / len(c) for c in columns))
        band = (
            Curve(steps=steps, values=tuple(map(min, columns))),
            Curve(steps=steps, values=tuple(map(max, columns))),
        )
        lines.append(
            Line(name=arm, curve=mean, colour=colour, dots=len(steps) < 20, band=band if len(own) > 1 else None)
        )
    return lines


def _funnel_panels(funnel: Funnel) -> list[Panel]:
    note = ""
    if funnel.sampled_documents < funnel.total_documents:
        note = f"of the first {funnel.sampled_documents:,} of {funnel.total_documents:,} documents"
    panels = []
    for title, bins in (("Length of documents", funnel.lengths), ("Languages", funnel.languages)):
        svg = charts.histogram(bins, title=f"{title}, {funnel.source}")
        if svg is not None:
            panels.append(Panel(title=title, svg=svg, legend=(("kept", 0), ("dropped", 1)), note=note))
    return panels


def heldout_rows(facts: Facts) -> list[dict[str, Any]]:
    """Return rows of the first table: variant, source, figure, baselines, and whether it beats them."""
    rows = []
    for heldout in facts.heldout:
        for source, value in heldout.bits_per_byte.items():
            baselines = {name: figures.get(source) for name, figures in facts.baselines.items()}
            known = [b for b in baselines.values() if b is not None]
            rows.append(
                {
                    "variant": heldout.variant,
                    "source": source,
                    "value": value,
                    "baselines": baselines,
                    "beats": None if not known else value < min(known),
                    "key": heldout.key,
                }
            )
    return rows


def whole(value: float) -> str:
    """Write a whole number with separators."""
    return f"{value:,.0f}"


def rough(value: float) -> str:
    """Write three digits and a prefix."""
    for limit, sign in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {sign}"
    return f"{value:.3g}"


def size(value: float) -> str:
    """Write bytes."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return (
                f"{value:.0f} {unit}"
                if unit == "B"
                else f"{value:.3g} {unit}"
                if value < 999.5
                else f"{value:.0f} {unit}"
            )
        value /= 1024
    raise AssertionError


def seconds(value: float) -> str:
    """Write a duration."""
    if value < 60:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours > 0 else f"{minutes} min {rest:02d} s"


def share(value: float) -> str:
    """Write a share as per cent."""
    return f"{100 * value:.1f} %" if abs(value) >= 0.001 or value == 0 else f"{100 * value:.2g} %"


def significant(value: float) -> str:
    """Write four decimals below ten, four digits above."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"


def signed(value: float) -> str:
    """Write a difference with its sign."""
    return f"{value:+.4f}"
