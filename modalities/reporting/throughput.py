"""Throughput studies: what was measured of each layout, and the fastest one as a config fragment."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from modalities.reporting.instances import Instance, pick


@dataclasses.dataclass(frozen=True, kw_only=True)
class Throughput:
    """One layout on one device. Figures are None where memory did not suffice."""

    name: str
    device: str
    outcome: str
    tokens_per_second: float | None
    mfu: float | None
    memory_bytes: int | None
    setting: Mapping[str, Any]
    changes: Mapping[str, Any]
    """Dotted key -> value, where settings of this study differ."""
    best: bool
    """Fastest on its device with its model."""
    key: str
    model: str
    """Parameters, as layouts of different models are not compared."""


def read_throughput(instances: Sequence[Instance]) -> tuple[Throughput, ...]:
    """Return every measured layout once, in order of the config."""
    found = list({i.key: i for i in pick(instances, "pretraining.benchmarking")}.values())
    flat = {i.key: dict(_flat(i.info["setting"])) for i in found}
    differing = {k for own in flat.values() for k in own if len({repr(o.get(k)) for o in flat.values()}) > 1}
    groups: dict[tuple[str, str], list[Instance]] = {}
    for instance in found:
        groups.setdefault(_group(instance), []).append(instance)
    best = {k for own in groups.values() if (k := _fastest(own)) is not None}
    return tuple(
        Throughput(
            name=i.info["name"],
            device=i.info["device"],
            outcome=i.info["outcome"],
            tokens_per_second=i.info.get("tokens_per_second"),
            mfu=i.info.get("mfu"),
            memory_bytes=i.info.get("memory_bytes"),
            setting=i.info["setting"],
            changes={k: v for k, v in flat[i.key].items() if k in differing},
            best=i.key in best,
            key=i.key,
            model=_group(i)[1],
        )
        for i in found
    )


def _group(instance: Instance) -> tuple[str, str]:
    section = instance.manifest.section
    sizes = {k: v for k, v in section.get("model", {}).items() if v is not None}
    return str(instance.info["device"]), f"{sizes} {section.get('sequence_length')}"


def _fastest(instances: Sequence[Instance]) -> str | None:
    measured = [i for i in instances if i.info.get("tokens_per_second") is not None]
    return max(measured, key=lambda i: float(i.info["tokens_per_second"])).key if measured else None


def _flat(value: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, child in value.items():
        here = f"{path}.{name}" if path else name
        found += _flat(child, here) if isinstance(child, Mapping) else [(here, child)]
    return found


def fragment(throughput: Sequence[Throughput]) -> str | None:
    """Return the fastest layout as YAML that a config can extend; None if nothing was measured, or several models were."""
    best = [t for t in throughput if t.best]
    if len(best) != 1 or best[0].tokens_per_second is None:
        return None
    (winner,) = best
    memory = "" if winner.memory_bytes is None else f", {winner.memory_bytes / 2**30:.2f} GiB"
    head = [
        f"# {winner.name}: the fastest of {len(throughput)} layouts on {winner.device}:",
        f"# {winner.tokens_per_second:,.0f} tokens/s{memory}. Use it with `extends:`, or copy it into a config.",
    ]
    body = yaml.safe_dump({"pretraining": {"numerics": dict(winner.setting)}}, sort_keys=False)
    return "\n".join([*(" ".join(line.split()) for line in head), body])
