"""Config of packing: sequence length, how documents fill sequences, and the mixture of the sources.

Weights become exact rationals of the text as written: `0.6` is 3/5 and not the float next to it.
"""

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Literal

from modalities.config import key
from modalities.errors import Invalid

VERSIONS = {"packing": 1}

Method = Literal["concatenate", "best_fit"]
WeightUnit = Literal["tokens", "documents"]
Weights = dict[str, float | str]
MAX_SEQUENCE_LENGTH = 2**24
MAX_WINDOW_DOCUMENTS = 2**24
_WHOLE = (Fraction(1), Fraction(100))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """One mixture that holds for a stretch of training."""

    weights: Weights = key(help="Share of each source in this phase, as in packing.weights.")
    tokens: int | None = key(None, help="How long the phase lasts, in tokens; only the last phase may leave it out.")

    def __post_init__(self) -> None:
        mixture(self.weights, key="weights")
        if self.tokens is not None and self.tokens < 1:
            raise Invalid(
                "tokens", f"expected a positive number of tokens, got {self.tokens}; remove the phase instead"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackingConfig:
    """The `packing` section."""

    sequence_length: int = key(1024, help="Tokens that the model reads at once.")
    method: Method = key(
        "concatenate",
        help="concatenate: documents back to back, cut every sequence_length tokens; "
        "best_fit: whole documents side by side, only those longer than a sequence are cut.",
    )
    window_documents: int = key(65_536, help="Documents that best_fit packs together; more of them leave less padding.")
    weights: Weights | None = key(
        None,
        help="Share of each source: numbers that add up to 1 or 100, fractions such as 1/3, or whole numbers as "
        "ratios; default: in proportion to what each source holds.",
    )
    weight_unit: WeightUnit = key("tokens", help="What weights are shares of: tokens or documents.")
    phases: tuple[PhaseConfig, ...] = key((), help="Mixtures one after another, instead of weights.", neutral=())
    max_epochs: float = key(
        4.0, kind="runtime", help="How often a source may be read; training that needs more is refused."
    )

    def __post_init__(self) -> None:
        if not 1 <= self.sequence_length <= MAX_SEQUENCE_LENGTH:
            raise Invalid("sequence_length", f"expected 1 to {MAX_SEQUENCE_LENGTH} tokens, got {self.sequence_length}")
        if not 1 <= self.window_documents <= MAX_WINDOW_DOCUMENTS:
            raise Invalid(
                "window_documents", f"expected 1 to {MAX_WINDOW_DOCUMENTS} documents, got {self.window_documents}"
            )
        if not (math.isfinite(self.max_epochs) and self.max_epochs > 0):
            raise Invalid(
                "max_epochs", f"expected a positive number, got {self.max_epochs}; write a large one to allow any"
            )
        if self.weights is not None and self.phases:
            raise Invalid(
                "phases", "expected either weights or phases, got both; move the weights into the first phase"
            )
        if self.weights is not None:
            mixture(self.weights, key="weights")
        for number, phase in enumerate(self.phases[:-1]):
            if phase.tokens is None:
                raise Invalid(
                    "phases", f"expected tokens in phase {number}, which is not the last, got none; add its budget"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackingUnitSection:
    """What the sequence records of one token shard depend on."""

    sequence_length: int = key(help="Tokens that the model reads at once.")
    method: Method = key(help="How documents fill sequences.")
    window_documents: int | None = key(None, help="Documents that best_fit packs together.", neutral=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseSection:
    """One mixture with its shares as exact fractions that add up to 1."""

    weights: dict[str, str] = key(help="Source -> share, such as 3/5.")
    tokens: int | None = key(None, help="How long the phase lasts; None: until training ends.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackingSection:
    """What the merged index depends on. The budget is checked and changes nothing in the index."""

    unit: PackingUnitSection = key(help="What the units depend on.")
    sources: tuple[str, ...] = key(help="Names of all sources, in the order of the config.")
    weight_unit: WeightUnit = key(help="What weights are shares of.")
    phases: tuple[PhaseSection, ...] = key((), help="Mixtures; none: in proportion to the sources.", neutral=())
    max_epochs: float = key(4.0, kind="runtime", help="How often a source may be read.")
    budget_tokens: int | None = key(None, kind="runtime", help="Tokens that the longest training will read, if known.")


def unit_section(config: PackingConfig) -> PackingUnitSection:
    """Return what the records of one token shard depend on."""
    window = config.window_documents if config.method == "best_fit" else None
    return PackingUnitSection(sequence_length=config.sequence_length, method=config.method, window_documents=window)


def section(config: PackingConfig, sources: tuple[str, ...], *, budget_tokens: int | None = None) -> PackingSection:
    """Return what the merged index depends on; `budget_tokens` is what the longest training will read."""
    check(config, sources)
    phases = config.phases
    if config.weights is not None:
        phases = (PhaseConfig(weights=config.weights),)
    return PackingSection(
        unit=unit_section(config),
        sources=sources,
        weight_unit=config.weight_unit if phases else "tokens",
        phases=tuple(PhaseSection(weights=_texts(phase.weights), tokens=phase.tokens) for phase in phases),
        max_epochs=config.max_epochs,
        budget_tokens=budget_tokens,
    )


def check(config: PackingConfig, sources: tuple[str, ...], *, budget_tokens: int | None = None) -> None:
    """Raise `Invalid` where weights do not fit the sources or phases do not last for the budget."""
    if config.weights is not None:
        _check_names(config.weights, sources, "packing.weights")
    for number, phase in enumerate(config.phases):
        _check_names(phase.weights, sources, f"packing.phases[{number}].weights")
    lengths = [phase.tokens for phase in config.phases]
    if budget_tokens is not None and lengths and None not in lengths:
        total = sum(tokens for tokens in lengths if tokens is not None)
        if total < budget_tokens:
            raise Invalid(
                "packing.phases",
                f"expected phases for {budget_tokens:,} tokens of training, got {total:,}; "
                "lengthen a phase or leave tokens out of the last one",
            )


def mixture(weights: Mapping[str, float | str], *, key: str) -> dict[str, Fraction]:
    """Return the shares as fractions that add up to 1; raise `Invalid` under `key` if they are not shares or ratios."""
    if not weights:
        raise Invalid(key, "expected a weight for each source, got none; leave the key out for the natural mixture")
    exact = {name: _fraction(value, f"{key}.{name}") for name, value in weights.items()}
    total = sum(exact.values(), Fraction(0))
    if total == 0:
        raise Invalid(key, "expected a weight above 0, got only zeros; give one source a weight")
    if total not in _WHOLE and any(share.denominator != 1 for share in exact.values()):
        raise Invalid(
            key,
            f"expected shares that add up to 1 or 100, got {float(total):g} ({_listing(exact)}); "
            "mend them, or write whole numbers, which are read as ratios",
        )
    return {name: share / total for name, share in exact.items()}


def _fraction(value: float | str, key: str) -> Fraction:
    try:
        share = Fraction(str(value).replace(" ", ""))
    except (ValueError, ZeroDivisionError):
        raise Invalid(key, f"expected a number or a fraction such as 1/3, got {value!r}; mend it") from None
    if share < 0:
        raise Invalid(key, f"expected a weight of 0 or more, got {value}; write 0 to leave the source out")
    return share


def _check_names(weights: Mapping[str, float | str], sources: tuple[str, ...], key: str) -> None:
    for name in weights:
        if name not in sources:
            raise Invalid(
                f"{key}.{name}", f"expected one of the sources {', '.join(sources)}, got {name!r}; mend the name"
            )
    missing = [name for name in sources if name not in weights]
    if missing:
        raise Invalid(
            key, f"expected a weight for every source, got none for {', '.join(missing)}; write 0 to leave one out"
        )


def _texts(weights: Mapping[str, float | str]) -> dict[str, str]:
    return {name: str(share) for name, share in sorted(mixture(weights, key="weights").items())}


def _listing(shares: Mapping[str, Fraction]) -> str:
    return ", ".join(f"{name}: {float(share):g}" for name, share in shares.items())
