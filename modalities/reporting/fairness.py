"""Is a comparison fair? What should be equal in all arms, and whether the study asked for what is not."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from modalities.reporting.instances import Groups, Instance, first, last_evaluation, pick
from modalities.reporting.training import training_flops

Read = Callable[[Sequence[Instance]], str | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that should be equal in all arms."""

    name: str
    equal: bool
    asked: bool
    """Whether the study changes a key that this depends on."""
    values: Mapping[str, str]
    """Arm -> what it is there."""


def read_checks(groups: Groups, swept: set[str]) -> list[Check]:
    """Return what could be compared. `swept` are the keys that the study changes."""
    found = (_check(name, read, keys, groups, swept) for name, read, keys in _CHECKS)
    return [check for check in found if check is not None]


def unasked(checks: Sequence[Check], arm: str, baseline: str) -> list[str]:
    """Return what differs between two arms and was not asked for."""
    differing = (c for c in checks if not c.asked and c.values.get(arm) != c.values.get(baseline))
    return [c.name for c in differing]


def _check(
    name: str,
    read: Read,
    keys: tuple[str, ...],
    groups: Groups,
    swept: set[str],
) -> Check | None:
    values = {}
    for arm, seeds in groups.items():
        found = list(dict.fromkeys(v for own in seeds.values() if (v := read(own)) is not None))
        if found:
            values[arm] = " | ".join(found)
    if not values:
        return None
    asked = any(key.startswith(prefix) for key in swept for prefix in keys)
    return Check(name=name, equal=len(set(values.values())) == 1, asked=asked, values=values)


def _content(node: str) -> Read:
    def read(instances: Sequence[Instance]) -> str | None:
        instance = first(instances, node)
        return None if instance is None else instance.upstream.content[:12]

    return read


def _trained(*path: str) -> Read:
    def read(instances: Sequence[Instance]) -> str | None:
        segments = pick(instances, "pretraining")
        value: Any = (
            {
                "info": segments[-1].info,
                "numerics": segments[-1].manifest.numerics,
                "section": segments[-1].manifest.section,
            }
            if segments
            else None
        )
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return None if value is None else str(value)

    return read


def _evaluated(instances: Sequence[Instance]) -> str | None:
    instance = last_evaluation(instances, "heldout")
    return None if instance is None else f"version {instance.manifest.version}, window {instance.info.get('window')}"


def _epochs(instances: Sequence[Instance]) -> str | None:
    packing = first(instances, "packing")
    shares = {} if packing is None else {n: f.get("epochs") for n, f in packing.info.get("sources", {}).items()}
    return ", ".join(f"{n} {float(e):.2f}" for n, e in shares.items() if e is not None) or None


def _last_section(instances: Sequence[Instance]) -> Mapping[str, Any] | None:
    segments = pick(instances, "pretraining")
    return segments[-1].manifest.section if segments else None


def _tokens_per_step(instances: Sequence[Instance]) -> str | None:
    section = _last_section(instances)
    if section is None or "global_batch_sequences" not in section:
        return None
    return str(section["global_batch_sequences"] * section["sequence_length"])


def _schedule(instances: Sequence[Instance]) -> str | None:
    section = _last_section(instances)
    if section is None or "warmup_steps" not in section:
        return None
    decay = section.get("decay")
    told = "no decay" if decay is None else ", ".join(f"{name} {value}" for name, value in decay.items())
    return f"warmup_steps {section['warmup_steps']}, {told}"


def _flops(instances: Sequence[Instance]) -> str | None:
    segments = pick(instances, "pretraining")
    found = None if not segments else training_flops(segments[-1].info)
    return None if found is None else f"{found:.4g}"


_DATA = ("ingestion", "filtering", "deduplication", "packing", "heldout")
_CHECKS: tuple[tuple[str, Read, tuple[str, ...]], ...] = (
    ("held-out documents", _content("heldout"), ()),
    ("tokenizer", _content("tokenization.tokenizer"), ("tokenization",)),
    ("tokens seen", _trained("info", "tokens_seen"), ("pretraining.total", "pretraining.global_batch")),
    ("steps", _trained("info", "step"), ("pretraining.total", "pretraining.global_batch")),
    (
        "tokens per step",
        _tokens_per_step,
        ("pretraining.global_batch", "packing.sequence_length"),
    ),
    (
        "FLOPs",
        _flops,
        (
            "pretraining.total",
            "pretraining.global_batch",
            "pretraining.model",
            "packing.sequence_length",
            "tokenization",
        ),
    ),
    ("parameters", _trained("info", "parameters"), ("pretraining.model", "tokenization")),
    ("schedule", _schedule, ("pretraining.schedule", "pretraining.total")),
    ("learning rate", _trained("section", "learning_rate"), ("pretraining.learning_rate",)),
    ("sequence length", _trained("section", "sequence_length"), ("packing.sequence_length",)),
    ("epochs per source", _epochs, (*_DATA, "pretraining.total")),
    ("evaluation", _evaluated, ("evaluation",)),
    ("numerics", _trained("numerics"), ("pretraining.numerics",)),
)
