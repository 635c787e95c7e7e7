"""The merged index of all sources: counts and weights, no sequence. It depends on neither budget, batch, seed nor world size.

`index.json`: for each source its units in order (key, content digests, sequences), its totals, and for each phase
the whole-number weights of the slots. About 200 bytes per token shard.
"""

import dataclasses
import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from modalities.errors import ConfigError, StoreError
from modalities.manifest import write_json
from modalities.packing.config import PackingSection, PhaseSection
from modalities.packing.order import Order, Schedule, Stretch, whole_weights

FORMAT = 1
NAME = "index.json"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """One token shard and its records."""

    key: str
    """Key of the packing unit, for people; readers go by place and content."""
    content: str
    """Content digest of the packing unit."""
    shard: str
    """Content digest of the token shard."""
    sequences: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One source with its units in order."""

    name: str
    units: tuple[Unit, ...]
    sequences: int
    documents: int
    tokens: int
    pairs: int
    """Inputs with a target, which is what training counts; the rest of sequences x sequence length is padding."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One mixture."""

    shares: dict[str, str]
    """As asked for: exact fractions of tokens or documents."""
    slots: dict[str, int]
    """As done: whole-number weights of slots, corrected for padding (or for the length of documents)."""
    sequences: int | None
    """How many slots it lasts; None: until training ends."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """What `index.json` holds."""

    sequence_length: int
    method: str
    sources: tuple[Source, ...]
    phases: tuple[Phase, ...]
    format: int = FORMAT

    def order(self) -> Order:
        """Return the order of training."""
        names = tuple(source.name for source in self.sources)
        return Order(
            sources=names,
            sizes=tuple(source.sequences for source in self.sources),
            stretches=tuple(
                Stretch(weights=tuple(phase.slots[name] for name in names), slots=phase.sequences)
                for phase in self.phases
            ),
        )

    @property
    def deviation(self) -> float:
        """Most sequences by which a source can be ahead of or behind its share within a phase."""
        return max(Schedule.of(stretch.weights).deviation for stretch in self.order().stretches)


def build(sources: Sequence[Source], section: PackingSection) -> Index:
    """Merge the counts of all sources and fix the weights of their slots."""
    by_name = {source.name: source for source in sources}
    phases = section.phases or (PhaseSection(weights=_natural(sources)),)
    return Index(
        sequence_length=section.unit.sequence_length,
        method=section.unit.method,
        sources=tuple(sources),
        phases=tuple(
            Phase(
                shares=phase.weights,
                slots=_slots(phase, by_name, section, number),
                sequences=None if phase.tokens is None else -(-phase.tokens // section.unit.sequence_length),
            )
            for number, phase in enumerate(phases)
        ),
    )


def _natural(sources: Sequence[Source]) -> dict[str, str]:
    total = sum(source.pairs for source in sources)
    if total == 0:
        raise ConfigError(
            "packing: expected at least one document of two tokens, got none in "
            f"{', '.join(source.name for source in sources)}; loosen filtering or add input files"
        )
    return {source.name: str(Fraction(source.pairs, total)) for source in sources}


def _slots(phase: PhaseSection, sources: dict[str, Source], section: PackingSection, number: int) -> dict[str, int]:
    shares: dict[str, Fraction] = {}
    for name, source in sources.items():
        share = Fraction(phase.weights[name])
        if share > 0 and source.sequences == 0:
            raise ConfigError(
                f"packing: phase {number}: expected documents in source {name}, which has weight {phase.weights[name]}, "
                f"got {source.tokens} tokens in {source.documents} documents; give it weight 0 or loosen its filters"
            )
        per_sequence = source.pairs if section.weight_unit == "tokens" else source.documents
        shares[name] = share * source.sequences / per_sequence if share > 0 else Fraction(0)
    return whole_weights(shares)


# --- on disk ---------------------------------------------------------------------------------------------------------


def write(folder: Path, index: Index) -> None:
    """Write `index.json`."""
    write_json(folder / NAME, dataclasses.asdict(index))


def read(folder: Path) -> Index:
    """Read `index.json`."""
    path = folder / NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise StoreError(f"{path}: expected format {FORMAT}, got {data['format']!r}; run packing again")
        data["sources"] = tuple(_source(source) for source in data["sources"])
        data["phases"] = tuple(Phase(**phase) for phase in data["phases"])
        return Index(**data)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path}: not a readable index ({error}); run packing again") from None


def _source(data: dict[str, Any]) -> Source:
    return Source(**data | {"units": tuple(Unit(**unit) for unit in data["units"])})


# --- budget ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SourceBudget:
    """What a training reads of one source."""

    source: str
    sequences: int
    tokens: int
    """Trained pairs, about: sequences times the mean of the source."""
    epochs: float


def check_budget(index: Index, *, sequences: int, max_epochs: float | None = None) -> tuple[SourceBudget, ...]:
    """Say what the first `sequences` slots read of each source.

    Raises `ConfigError` with all figures if a source would be read more than `max_epochs` times, or if the phases end before.
    """
    order = index.order()
    if order.num_slots is not None and sequences > order.num_slots:
        raise ConfigError(
            f"packing.phases: expected phases for {sequences:,} sequences of {index.sequence_length} tokens, got "
            f"{order.num_slots:,}; lengthen a phase or leave tokens out of the last one"
        )
    report = tuple(
        SourceBudget(
            source=source.name,
            sequences=int(count),
            tokens=int(count) * source.pairs // source.sequences if source.sequences else 0,
            epochs=int(count) / source.sequences if source.sequences else 0.0,
        )
        for source, count in zip(index.sources, order.counts(sequences), strict=True)
    )
    # Shares hold to within `deviation` sequences in each phase, so that much over the limit is no fault of the budget.
    slack = index.deviation * len(index.phases)
    over = [
        used
        for used, source in zip(report, index.sources, strict=True)
        if max_epochs is not None and used.sequences > max_epochs * source.sequences + slack
    ]
    if over:
        raise ConfigError(_too_many(index, report, over, sequences, max_epochs))
    return report


def _too_many(
    index: Index,
    report: tuple[SourceBudget, ...],
    over: list[SourceBudget],
    sequences: int,
    max_epochs: float | None,
) -> str:
    names = ", ".join(f"{used.source} {used.epochs:.2f}" for used in over)
    figures = "; ".join(
        f"{used.source}: {used.sequences:,} of {source.sequences:,} sequences ({source.pairs:,} tokens) = "
        f"{used.epochs:.2f} epochs"
        for used, source in zip(report, index.sources, strict=True)
    )
    return (
        f"packing.max_epochs: expected at most {max_epochs:g} epochs of each source, got {names} for "
        f"{sequences * index.sequence_length:,} tokens of training [{figures}]; train for fewer tokens, lower the weight, "
        "add data, or raise packing.max_epochs"
    )
