"""Training as the report shows it: curves over all segments of a variant, and what was trained."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modalities import config
from modalities.errors import ConfigError, Invalid, StoreError
from modalities.models import architectures
from modalities.models.llama_config import LlamaConfig
from modalities.reporting.instances import Instance, pick

METRICS = ("loss", "learning_rate", "grad_norm", "tokens_per_second", "mfu", "memory_bytes")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """Values over steps."""

    steps: tuple[float, ...]
    values: tuple[float, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """One variant's training."""

    variant: str
    segments: tuple[str, ...]
    """Keys of its instances, first to last."""
    last_step: int
    tokens: int | None
    num_parameters: int | None
    model: Mapping[str, Any]
    curves: Mapping[str, Curve]
    validation: Mapping[str, Curve]
    """Source -> bits per byte in the loop."""
    elapsed_seconds: float
    cpu_seconds: float
    flops: float | None
    num_skipped: int
    numerics: Mapping[str, Any]


def read_training(variant: str, instances: Sequence[Instance], *, points: int) -> Training | None:
    """Join the segments of a variant; None if it trains nothing."""
    segments = pick(instances, "pretraining")
    if not segments:
        return None
    lines = [line for segment in segments for line in read_metrics(segment.upstream.folder / "metrics.jsonl")]
    last = segments[-1].manifest
    provenance = [s.manifest.provenance for s in segments]
    curves = {name: thin(curve, points) for name in METRICS if (curve := _curve(lines, name)) is not None}
    tokens = _number(last.info, "tokens_seen", "tokens") or _last(lines, "tokens")
    parameters = _number(last.info, "parameters", "num_parameters")
    return Training(
        variant=variant,
        segments=tuple(s.key for s in segments),
        last_step=segments[-1].last_step,
        tokens=None if tokens is None else int(tokens),
        num_parameters=None if parameters is None else int(parameters),
        model=_mapping(last.info, "model"),
        curves=curves,
        validation=_validation(lines),
        elapsed_seconds=sum(float(p.get("elapsed_seconds", 0.0)) for p in provenance),
        cpu_seconds=sum(float(p.get("cpu_seconds", 0.0)) for p in provenance),
        flops=training_flops(last.info),
        num_skipped=sum(1 for line in lines if line.get("skipped") is True),
        numerics=last.numerics,
    )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; a line that was cut off by a kill is an error that names it."""
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
        except ValueError:
            raise StoreError(
                f"{path}:{number}: expected a JSON object, got {text[:60]!r}; run `modalities store verify`"
            ) from None
        if not isinstance(line, dict) or "step" not in line:
            raise StoreError(
                f"{path}:{number}: expected an object with `step`, got {text[:60]!r}; run `modalities store verify`"
            )
        lines.append(line)
    return lines


def training_flops(info: Mapping[str, Any]) -> float | None:
    """Return forward and backward FLOPs of training; None where the architecture is not at hand."""
    tokens, length = _number(info, "tokens_seen", "tokens"), _number(info, "sequence_length")
    if tokens is None or length is None or not _mapping(info, "model"):
        return None
    try:
        model = config.build(LlamaConfig, info["model"])
        per_token = architectures.counts_module(model).flops_per_token(model, sequence_length=int(length))
    except (Invalid, ConfigError):
        return None
    return float(per_token) * tokens


def _curve(lines: Sequence[Mapping[str, Any]], name: str) -> Curve | None:
    points = [(line["step"], line[name]) for line in lines if _finite(line.get(name))]
    if not points:
        return None
    return Curve(steps=tuple(float(s) for s, _ in points), values=tuple(float(v) for _, v in points))


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _validation(lines: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    points: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        for source, figures in _mapping(line, "validation").items():
            value = figures.get("bits_per_byte") if isinstance(figures, Mapping) else None
            if value is not None and _finite(value):
                points.setdefault(source, []).append((float(line["step"]), float(value)))
    return {source: Curve(steps=tuple(s for s, _ in p), values=tuple(v for _, v in p)) for source, p in points.items()}


def thin(curve: Curve, points: int) -> Curve:
    """Return at most `points` points, each the mean of a span of equal length; first and last stay as they are."""
    count = len(curve.steps)
    if count <= points:
        return curve
    steps, values = [curve.steps[0]], [curve.values[0]]
    inner = points - 2
    for i in range(inner):
        low, high = 1 + i * (count - 2) // inner, 1 + (i + 1) * (count - 2) // inner
        steps.append(sum(curve.steps[low:high]) / (high - low))
        values.append(sum(curve.values[low:high]) / (high - low))
    return Curve(steps=(*steps, curve.steps[-1]), values=(*values, curve.values[-1]))


def _number(data: Mapping[str, Any], *names: str) -> float | None:
    return next((float(data[n]) for n in names if _finite(data.get(n))), None)


def _last(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return next((float(line[name]) for line in reversed(lines) if _finite(line.get(name))), None)


def _mapping(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name)
    return value if isinstance(value, Mapping) else {}
