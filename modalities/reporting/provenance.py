"""Every artefact of a run with what it was made from and what it cost, and whether its documents add up."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from modalities.reporting.instances import Instance


@dataclasses.dataclass(frozen=True, kw_only=True)
class Artefact:
    """One instance; variants that share it are listed."""

    node: str
    label: str
    key: str
    content: str
    variants: tuple[str, ...]
    upstream: Mapping[str, str]
    """Role -> key."""
    version: int
    num_units: int
    num_bytes: int
    started: str | None
    elapsed_seconds: float | None
    cpu_seconds: float | None
    peak_memory_bytes: int | None
    packages: Mapping[str, str]
    documents_in: int | None
    documents_out: int | None
    num_dropped: int
    balanced: bool | None
    """Whether documents in = out + dropped; None for nodes that move no documents."""


def read_artefacts(instances: Sequence[Instance]) -> list[Artefact]:
    """Return each distinct instance once, in the order given."""
    grouped: dict[str, list[Instance]] = {}
    for instance in instances:
        grouped.setdefault(instance.key, []).append(instance)
    return [_artefact(group) for group in grouped.values()]


def _artefact(group: Sequence[Instance]) -> Artefact:
    manifest, units = group[0].manifest, group[0].upstream.units
    records = [manifest, *(u.manifest for u in units)]
    counts, dropped = manifest.counts, sum(manifest.dropped.values())
    into, out = counts.get("documents_in"), counts.get("documents_out")
    return Artefact(
        node=manifest.node,
        label=manifest.label,
        key=manifest.key,
        content=manifest.content,
        variants=tuple(dict.fromkeys(i.variant for i in group)),
        upstream={role: str(made.get("key", "")) for role, made in manifest.upstream.items()},
        version=manifest.version,
        num_units=len(manifest.units),
        num_bytes=sum(sum(m.files.values()) for m in records),
        started=_started([m.provenance for m in records]),
        elapsed_seconds=_total(records, "elapsed_seconds"),
        cpu_seconds=_total(records, "cpu_seconds"),
        peak_memory_bytes=_most(records, "peak_memory_bytes"),
        packages=manifest.packages,
        documents_in=into,
        documents_out=out,
        num_dropped=dropped,
        balanced=None if into is None or out is None else into == out + dropped,
    )


def _started(records: Sequence[Mapping[str, Any]]) -> str | None:
    times = [str(p["started"]) for p in records if p.get("started") is not None]
    return min(times) if times else None


def _total(records: Sequence[Any], name: str) -> float | None:
    values = [float(m.provenance[name]) for m in records if m.provenance.get(name) is not None]
    return sum(values) if values else None


def _most(records: Sequence[Any], name: str) -> int | None:
    values = [int(m.provenance[name]) for m in records if m.provenance.get(name) is not None]
    return max(values) if values else None
