"""Keys of the report and of the statistics that compare arms.

`reporting:` says how the page looks, `analysis:` how verdicts are reached. No other stage reads them, so that changing a
margin or a title reruns the report alone.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from modalities.config import key, load, plain, read
from modalities.errors import ConfigError, Invalid

VERSIONS = {"reporting": 2}
RESULT_PACKAGES: dict[str, tuple[str, ...]] = {"reporting": ("scipy",)}

DEFAULT_MARGINS = {"bits_per_byte": 0.005, "accuracy": 0.01}
"""Differences too small to matter, unless the config says otherwise: 0.005 bits per byte, one point of accuracy."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportingConfig:
    """What the page shows."""

    title: str | None = key(None, help="Title of the page; by default the name of the run.")
    examples: int = key(3, help="Dropped documents shown per reason and source.")
    excerpt_characters: int = key(400, help="Characters of a document that an example shows.")
    clusters: int = key(12, help="Largest duplicate clusters shown.")
    curve_points: int = key(
        1200, help="Points per curve; longer curves are thinned to the mean of equal spans of steps."
    )

    def __post_init__(self) -> None:
        for name, least in (("examples", 0), ("excerpt_characters", 40), ("clusters", 0), ("curve_points", 50)):
            if getattr(self, name) < least:
                raise Invalid(name, f"expected {least} or more, got {getattr(self, name)}; raise it")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisConfig:
    """How arms of a study are compared. The statistics are explained in docs/statistics.md."""

    baseline: str | None = key(None, help="Arm that others are compared with; by default the first one.")
    margin: dict[str, float] = key(
        factory=dict, help="Per metric, the difference that is too small to matter: bits_per_byte 0.005, accuracy 0.01."
    )
    confirmatory: tuple[str, ...] = key(
        ("bits_per_byte",), help="Metrics the study is about; all others are exploratory."
    )
    alpha: float = key(0.05, help="Share of studies that may call a false better or worse, over all arms and metrics.")
    power: float = key(0.8, help="Power for which the minimum detectable effect is stated.")
    looks: tuple[int, ...] = key((), help="Numbers of seeds at which results are looked at; each look spends alpha.")
    looks_taken: tuple[int, ...] = key(
        (),
        help="Numbers of seeds at which results were looked at without having been planned; they are named in the verdict.",
    )
    spending: Literal["obrien_fleming", "pocock"] = key("obrien_fleming", help="How alpha is spent over planned looks.")
    pool_seeds: bool = key(True, help="Pool the variance over seeds of all arms where a test does not reject it.")
    archive: Path | None = key(
        None,
        kind="runtime",
        help="File of `modalities archive-seeds`: variance over seeds of earlier studies, shown where there is one seed.",
    )

    def __post_init__(self) -> None:
        for name in ("alpha", "power"):
            if not 0 < getattr(self, name) < 1:
                raise Invalid(
                    name, f"expected a share between 0 and 1, got {getattr(self, name)}; choose 0.05 or 0.8, say"
                )
        for metric, margin in self.margin.items():
            if not margin > 0:
                raise Invalid(
                    f"margin.{metric}", f"expected a difference above 0, got {margin}; name what matters to you"
                )
        if any(b <= a for a, b in zip(self.looks, self.looks[1:], strict=False)) or any(
            look < 2 for look in self.looks
        ):
            raise Invalid(
                "looks", f"expected rising numbers of seeds from 2 on, got {list(self.looks)}; write [3, 5], say"
            )
        if not self.confirmatory:
            raise Invalid("confirmatory", "expected at least one metric, got none; write [bits_per_byte]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchivedSpread:
    """What one earlier study found of one metric: the deviation of single runs over seeds, within arms."""

    metric: str = key(help="Such as bits_per_byte.")
    parameters: int = key(help="Of the model.")
    tokens: int = key(help="Of one training.")
    deviation: float = key(help="Standard deviation over seeds.")
    df: int = key(help="Its degrees of freedom.")
    run: str = key("", kind="runtime", help="Name of the study.")


ARCHIVE_FORMAT = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Archive:
    """The file that `analysis.archive` names."""

    format: int = key(help="Version of the file format.")
    entries: tuple[ArchivedSpread, ...] = key(help="One per study and metric.")

    def __post_init__(self) -> None:
        if self.format != ARCHIVE_FORMAT:
            raise Invalid(
                "format", f"expected {ARCHIVE_FORMAT}, got {self.format}; make it with `modalities archive-seeds`"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportingSection:
    """What the report's node reads."""

    run: str = key(help="Name of the run.")
    config_yaml: str = key(help="The resolved config as text.")
    variants: dict[str, dict[str, Any]] = key(
        factory=dict, help="Variant -> its labels: `arm`, `seed` and `changes`, or just the keys that it changes."
    )
    reporting: ReportingConfig = key(factory=ReportingConfig, help="How the page looks.")
    analysis: AnalysisConfig = key(factory=AnalysisConfig, help="How arms are compared.")
    archive: tuple[ArchivedSpread, ...] = key((), neutral=(), help="The contents of `analysis.archive`.")


def section(
    config: ReportingConfig,
    analysis: AnalysisConfig,
    *,
    run: str,
    config_yaml: str,
    variants: Mapping[str, Mapping[str, Any]],
) -> ReportingSection:
    """Return what the report of one run reads."""
    labels = {name: plain(label) for name, label in variants.items()}
    return ReportingSection(
        run=run,
        config_yaml=config_yaml,
        variants=labels,
        reporting=config,
        analysis=analysis,
        archive=() if analysis.archive is None else read_archive(analysis.archive),
    )


def read_archive(path: Path) -> tuple[ArchivedSpread, ...]:
    """Read what `modalities archive-seeds` wrote."""
    if not path.is_file():
        raise ConfigError(f"analysis.archive: expected a file, got {path}; make it with `modalities archive-seeds`")
    return load(Archive, read(path), "analysis.archive").entries
