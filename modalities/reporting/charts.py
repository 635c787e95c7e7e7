"""Charts as inline SVG: no library, no script needed to see them, colours from the page's style sheet.

Coordinates have two decimals, 1/15,000 of the plot's height; `report.js` reads values back from them for the hover line.
"""

import dataclasses
import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from modalities.reporting.funnel import Bin
from modalities.reporting.training import Curve

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 40
NUM_COLOURS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """A named curve; `colour` picks a style, equal colours belong together."""

    name: str
    curve: Curve
    colour: int = 0
    dots: bool = False
    band: tuple[Curve, Curve] | None = None
    """Lower and upper edge, such as the range over seeds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
    """A horizontal line of reference, such as a baseline."""

    name: str
    value: float
    colour: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bar:
    """A value with an interval, one row of a forest plot."""

    name: str
    value: float
    low: float | None
    high: float | None
    note: str = ""
    colour: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Axis:
    low: float
    high: float
    start: float
    length: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + self.length * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        if self.log:
            return _log_ticks(self.low, self.high)
        step = _step((self.high - self.low) / 5)
        first = math.ceil(self.low / step - 1e-9)
        return [round(i * step, 12) for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    y_label: str,
    x_label: str = "step",
    log: bool = False,
    from_zero: bool = False,
    levels: Sequence[Level] = (),
) -> Markup | None:
    """Draw curves over steps; None if there is nothing to draw. Values that a log axis cannot show are left out."""
    lines = [kept for line in lines if (kept := _drawable(line, log)) is not None]
    if not lines:
        return None
    steps = [s for line in lines for s in line.curve.steps]
    values = [v for line in lines for c in (line.curve, *(line.band or ())) for v in c.values]
    values += [level.value for level in levels if level.value > 0 or not log]
    x = _Axis(low=min(steps), high=_above(min(steps), max(steps)), start=LEFT, length=WIDTH - LEFT - RIGHT)
    low, high = _range(values, log=log, from_zero=from_zero)
    y = _Axis(low=low, high=high, start=HEIGHT - BOTTOM, length=TOP + BOTTOM - HEIGHT, log=log)
    parts = [_grid(x, y, x_label, y_label)]
    parts.append(_levels([level for level in levels if low <= level.value <= high], y))
    parts += [_band(line, x, y) for line in lines]
    parts += [_line(line, x, y) for line in lines]
    scale = f"{x.low!r} {x.high!r} {y.low!r} {y.high!r}"
    body = Markup("").join(parts)
    return Markup(
        '<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {} {}" data-scale="{}" data-plot="{} {} {} {}"'
        ' data-log="{}" data-x="{}" xmlns="http://www.w3.org/2000/svg"><title>{}</title>{}'
        '<g class="hover"></g></svg>'
    ).format(
        title, WIDTH, HEIGHT, scale, LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM, "1" if log else "", x_label, title, body
    )


def _drawable(line: Line, log: bool) -> Line | None:
    pairs = [(s, v) for s, v in zip(line.curve.steps, line.curve.values, strict=True) if v > 0 or not log]
    if not pairs:
        return None
    return dataclasses.replace(line, curve=Curve(steps=tuple(s for s, _ in pairs), values=tuple(v for _, v in pairs)))


def _above(low: float, high: float) -> float:
    return high if high > low else low + 1


def _range(values: Sequence[float], *, log: bool, from_zero: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        room = (high / low) ** 0.05 if high > low else 1.5
        return low / room, high * room
    room = 0.05 * (high - low) if high > low else 0.05 * abs(high) or 1.0
    return (0.0 if from_zero and low >= 0 else low - room), high + room


def _grid(x: _Axis, y: _Axis, x_label: str, y_label: str) -> Markup:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick in y.ticks():
        parts.append(
            _text('<line class="grid" x1="{}" x2="{}" y1="{:.2f}" y2="{:.2f}"/>', LEFT, right, y.at(tick), y.at(tick))
        )
        parts.append(
            _text(
                '<text class="tick" text-anchor="end" x="{}" y="{:.2f}">{}</text>',
                LEFT - 7,
                y.at(tick) + 4,
                short(tick),
            )
        )
    for tick in x.ticks():
        parts.append(
            _text(
                '<text class="tick" text-anchor="middle" x="{:.2f}" y="{}">{}</text>',
                x.at(tick),
                bottom + 17,
                short(tick),
            )
        )
    parts.append(_text('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>', LEFT, right, bottom, bottom))
    parts.append(_text('<text class="label" text-anchor="end" x="{}" y="{}">{}</text>', right, HEIGHT - 6, x_label))
    parts.append(_text('<text class="label" x="{}" y="{}">{}</text>', LEFT + 6, TOP + 6, y_label))
    return Markup("").join(parts)


def _text(template: str, *values: object) -> Markup:
    """Fill a template; numbers as they are, text escaped."""
    return Markup(template.format(*(v if isinstance(v, (int, float)) else escape(v) for v in values)))


def _path(curve: Curve, x: _Axis, y: _Axis) -> str:
    return " ".join(f"{x.at(s):.2f},{y.at(v):.2f}" for s, v in zip(curve.steps, curve.values, strict=True))


def _line(line: Line, x: _Axis, y: _Axis) -> Markup:
    colour = line.colour % NUM_COLOURS
    dashes = f" dash{line.colour // NUM_COLOURS % 3}" if line.colour >= NUM_COLOURS else ""
    drawn = _text(
        '<polyline class="curve c{}{}" data-name="{}" points="{}"/>', colour, dashes, line.name, _path(line.curve, x, y)
    )
    if not line.dots:
        return drawn
    dots = [
        _text('<circle class="dot c{}" cx="{:.2f}" cy="{:.2f}" r="3"/>', colour, x.at(s), y.at(v))
        for s, v in zip(line.curve.steps, line.curve.values, strict=True)
    ]
    return drawn + Markup("").join(dots)


def _band(line: Line, x: _Axis, y: _Axis) -> Markup:
    if line.band is None:
        return Markup("")
    low, high = line.band
    back = Curve(steps=high.steps[::-1], values=high.values[::-1])
    points = f"{_path(low, x, y)} {_path(back, x, y)}"
    return _text('<polygon class="band c{}" points="{}"/>', line.colour % NUM_COLOURS, points)


def _levels(levels: Sequence[Level], y: _Axis) -> Markup:
    """Draw lines of reference; names of lines that lie close together stand side by side."""
    parts, right, before = [], WIDTH - RIGHT, -math.inf
    for level in sorted(levels, key=lambda one: y.at(one.value)):
        place = y.at(level.value)
        right = right - 125 if place - before < 13 else WIDTH - RIGHT
        before = place
        colour = level.colour % NUM_COLOURS
        line = '<line class="level c{}" x1="{}" x2="{}" y1="{:.2f}" y2="{:.2f}"/>'
        parts.append(_text(line, colour, LEFT, WIDTH - RIGHT, place, place))
        name = '<text class="levelname" text-anchor="end" x="{}" y="{:.2f}">{}</text>'
        parts.append(_text(name, right - 2, place - 4, level.name))
    return Markup("").join(parts)


ROW, NAMES, NOTES = 24, 150, 84


def forest(bars: Sequence[Bar], *, title: str, x_label: str, margin: float) -> Markup:
    """Draw values with intervals around zero, and the span within the margin."""
    ends = [e for b in bars for e in (b.value, b.low, b.high) if e is not None]
    low, high = _range([*ends, -margin, margin], log=False, from_zero=False)
    height = TOP + ROW * len(bars) + BOTTOM
    x = _Axis(low=low, high=high, start=NAMES, length=WIDTH - NAMES - NOTES)
    bottom = height - BOTTOM
    parts = [
        _text(
            '<rect class="margin" x="{:.2f}" width="{:.2f}" y="{}" height="{}"/>',
            x.at(-margin),
            x.at(margin) - x.at(-margin),
            TOP,
            bottom - TOP,
        ),
        _text('<line class="axis" x1="{:.2f}" x2="{:.2f}" y1="{}" y2="{}"/>', x.at(0), x.at(0), TOP, bottom),
        _text('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>', NAMES, WIDTH - NOTES, bottom, bottom),
        _text('<text class="label" text-anchor="end" x="{}" y="{}">{}</text>', WIDTH - NOTES, height - 6, x_label),
    ]
    for tick in x.ticks():
        template = '<text class="tick" text-anchor="middle" x="{:.2f}" y="{}">{}</text>'
        parts.append(_text(template, x.at(tick), bottom + 17, short(tick)))
    parts += [_forest_row(bar, x, TOP + ROW * (i + 0.5)) for i, bar in enumerate(bars)]
    return Markup(
        '<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {} {}" xmlns="http://www.w3.org/2000/svg"><title>{}</title>{}</svg>'
    ).format(title, WIDTH, height, title, Markup("").join(parts))


def _forest_row(bar: Bar, x: _Axis, y: float) -> Markup:
    name = bar.name if len(bar.name) <= 24 else f"{bar.name[:22]}.."
    colour = bar.colour % NUM_COLOURS
    parts = [
        _text("<g><title>{}</title>", bar.name),
        _text('<text class="label" text-anchor="end" x="{}" y="{:.2f}">{}</text>', NAMES - 8, y + 4, name),
        _text('<text class="tick" x="{}" y="{:.2f}">{}</text>', WIDTH - NOTES + 8, y + 4, bar.note),
    ]
    if bar.low is not None and bar.high is not None:
        line = '<line class="curve c{}" x1="{:.2f}" x2="{:.2f}" y1="{:.2f}" y2="{:.2f}"/>'
        parts.append(_text(line, colour, x.at(bar.low), x.at(bar.high), y, y))
    parts.append(_text('<circle class="dot c{}" cx="{:.2f}" cy="{:.2f}" r="4"/></g>', colour, x.at(bar.value), y))
    return Markup("").join(parts)


def histogram(bins: Sequence[Bin], *, title: str) -> Markup | None:
    """Draw stacked bars, kept below dropped; None without bins."""
    if not bins:
        return None
    most = max(b.kept + b.dropped for b in bins) or 1
    width = (WIDTH - LEFT - RIGHT) / len(bins)
    y = _Axis(low=0, high=most * 1.08, start=HEIGHT - BOTTOM, length=TOP + BOTTOM - HEIGHT)
    parts = []
    for tick in y.ticks():
        parts.append(
            _text(
                '<line class="grid" x1="{}" x2="{}" y1="{:.2f}" y2="{:.2f}"/>',
                LEFT,
                WIDTH - RIGHT,
                y.at(tick),
                y.at(tick),
            )
        )
        parts.append(
            _text(
                '<text class="tick" text-anchor="end" x="{}" y="{:.2f}">{}</text>',
                LEFT - 7,
                y.at(tick) + 4,
                short(tick),
            )
        )
    every = max(1, math.ceil(len(bins) / 9))
    for i, b in enumerate(bins):
        left, middle, top = LEFT + i * width, y.at(b.kept), y.at(b.kept + b.dropped)
        inner = (left + width * 0.09, width * 0.82)
        parts.append(_text("<g><title>{}: {:,} kept, {:,} dropped</title>", b.label, b.kept, b.dropped))
        parts.append(
            _text(
                '<rect class="kept" x="{:.2f}" width="{:.2f}" y="{:.2f}" height="{:.2f}"/>',
                *inner,
                middle,
                y.at(0) - middle,
            )
        )
        parts.append(
            _text(
                '<rect class="dropped" x="{:.2f}" width="{:.2f}" y="{:.2f}" height="{:.2f}"/></g>',
                *inner,
                top,
                middle - top,
            )
        )
        if i % every == 0:
            parts.append(
                _text(
                    '<text class="tick" text-anchor="middle" x="{:.2f}" y="{}">{}</text>',
                    left + width / 2,
                    HEIGHT - BOTTOM + 17,
                    b.label[:12],
                )
            )
    parts.append(
        _text(
            '<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>',
            LEFT,
            WIDTH - RIGHT,
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM,
        )
    )
    return Markup(
        '<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {} {}" xmlns="http://www.w3.org/2000/svg"><title>{}</title>{}</svg>'
    ).format(title, WIDTH, HEIGHT, title, Markup("").join(parts))


def bar(share: float, *, kind: str = "kept") -> Markup:
    """Draw one bar as wide as `share` of the space it is given."""
    return _text(
        '<svg class="bar" width="100%" height="10" aria-hidden="true"><rect class="rail" width="100%" height="10" rx="2"/>'
        '<rect class="{}" width="{:.3f}%" height="10" rx="2"/></svg>',
        kind,
        100 * min(max(share, 0.0), 1.0),
    )


def short(value: float) -> str:
    """Write a tick: 1200000 as 1.2M, 0.0003 as 3e-4."""
    size = abs(value)
    for limit, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if sign == 'k' else limit):.4g}{sign}"
    if 0 < size < 1e-3:
        mantissa, _, exponent = f"{value:.3e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.6g}"


def _step(rough: float) -> float:
    power = 10 ** math.floor(math.log10(rough))
    return float(next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9)))


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    few = len(decades) <= 3
    ticks = [m * 10.0**d for d in decades for m in ((1, 2, 5) if few else (1,)) if low <= m * 10.0**d <= high]
    if len(ticks) >= 2:
        return ticks
    step = _step((high - low) / 5)
    return [i * step for i in range(max(1, math.ceil(low / step)), math.floor(high / step) + 1)]
