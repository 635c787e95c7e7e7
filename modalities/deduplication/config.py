"""Keys of deduplication and decontamination, and the sections of its three plan nodes.

The defaults are FineWeb's and FineWeb-2's: 5-grams of words, 14 bands of 8 hashes, seed 1; two documents of Jaccard
similarity 0.8 share a band with probability 0.92, of 0.5 with 0.05.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from modalities.config import key
from modalities.errors import ConfigError, Invalid

VERSIONS = {"deduplication.signatures": 1, "deduplication.clusters": 1, "deduplication": 1}
RESULT_PACKAGES = {
    "deduplication.signatures": ("datatrove", "spacy"),
    "deduplication.clusters": ("datatrove", "spacy"),
    "deduplication": (),
}
"""Packages whose version changes what a node makes: they decide what a word is."""

Method = Literal["none", "exact", "minhash"]
Hash = Literal["xxhash64", "sha1"]
Scope = Literal["source", "language", "global"]
Action = Literal["remove", "flag"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DecontaminationConfig:
    """Evaluation items that training text must not contain."""

    tasks: dict[str, Path] = key(
        help="Task name -> file of its items: JSONL (all text of a line counts) or plain text, one item a line."
    )
    ngram: int = key(13, help="Words that must agree in a row.")
    action: Action = key(
        "remove", help="What happens to a document that contains an item: remove, or flag (counted only)."
    )

    def __post_init__(self) -> None:
        if not self.tasks:
            raise Invalid("tasks", "expected at least one task, got none; name a file, or leave decontamination out")
        for name in self.tasks:
            if not name or name.split() != [name]:
                raise Invalid(f"tasks.{name}", f"expected a name without blanks, got {name!r}; rename the task")
        if not 1 <= self.ngram <= 100:
            raise Invalid("ngram", f"expected 1 to 100 words, got {self.ngram}; 13 is usual")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeduplicationConfig:
    """Which documents count as the same, and which of them stays."""

    method: Method = key(
        "minhash",
        help="none (held-out documents leave, nothing else), exact (equal text), or minhash (near-duplicates too).",
    )
    ngram: int = key(5, help="Words per shingle; texts of fewer words are compared exactly only.")
    buckets: int = key(14, help="Bands of the signature; documents that agree in one band are near-duplicates.")
    hashes_per_bucket: int = key(
        8, help="Hashes per band; similarity (1/buckets)^(1/hashes_per_bucket) is found half of the time."
    )
    seed: int = key(1, help="Seed of the hash permutations.")
    hash: Hash = key("xxhash64", help="Hash of a shingle: xxhash64 (FineWeb-2) or sha1 (FineWeb).")
    scope: Scope = key(
        "global", help="Among which documents: of one source, of all sources of one language, or of all."
    )
    priority: tuple[str, ...] = key(
        (), help="Sources whose documents survive first; sources not named follow, all equal."
    )
    decontamination: DecontaminationConfig | None = key(
        None, help="Remove or flag documents that contain evaluation items."
    )
    report_clusters: int = key(20, help="How many of the largest clusters are listed with excerpts.")

    def __post_init__(self) -> None:
        for name, low, high in (("ngram", 1, 100), ("buckets", 1, 1000), ("hashes_per_bucket", 1, 1000)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise Invalid(name, f"expected {low} to {high}, got {value}; the default is good for web text")
        if not 0 <= self.seed < 2**32:
            raise Invalid("seed", f"expected 0 to 2^32 - 1, got {self.seed}; any such number does")
        if self.report_clusters < 0:
            raise Invalid("report_clusters", f"expected 0 or more, got {self.report_clusters}; 0 lists none")
        twice = {name for name in self.priority if self.priority.count(name) > 1}
        if twice:
            raise Invalid("priority", f"expected every source once, got {sorted(twice)[0]} twice; keep one of them")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TaskFile:
    """A file of evaluation items; its content counts, not its place."""

    sha256: str = key(help="Digest of the file.")
    path: Path = key(help="Where it is.", kind="runtime")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SignaturesSection:
    """What the signatures of a source depend on."""

    method: Method = key(help="none, exact or minhash.")
    language: str | None = key(help="Language whose words are counted; None splits as for any language.")
    ngram: int = key(help="Words per shingle.")
    buckets: int = key(help="Bands.")
    hashes_per_bucket: int = key(help="Hashes per band.")
    seed: int = key(help="Seed of the permutations.")
    hash: Hash = key(help="Hash of a shingle.")
    contamination_ngram: int = key(help="Words of an evaluation item that must agree in a row.")
    tasks: dict[str, TaskFile] = key(help="Evaluation items by task.")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClustersSection:
    """What the clusters of a study depend on."""

    method: Method = key(help="none, exact or minhash.")
    ngram: int = key(help="Words per shingle.")
    buckets: int = key(help="Bands.")
    hashes_per_bucket: int = key(help="Hashes per band.")
    seed: int = key(help="Seed of the permutations.")
    hash: Hash = key(help="Hash of a shingle.")
    scope: Scope = key(help="source, language or global.")
    priority: tuple[str, ...] = key(help="Sources whose documents survive first.")
    remove_contaminated: bool = key(help="Whether documents that contain evaluation items leave.")
    report_clusters: int = key(help="How many of the largest clusters are listed.")
    languages: dict[str, str | None] = key(help="Source -> its language.")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DeduplicationSection:
    """What the decisions of a source depend on."""

    source: str = key(help="Name of the source.")


def signatures_section(config: DeduplicationConfig, language: str | None) -> SignaturesSection:
    """Return the section of `deduplication.signatures`. Read and hash the task files."""
    decontamination = config.decontamination
    return SignaturesSection(
        method=config.method,
        language=language,
        ngram=config.ngram,
        buckets=config.buckets,
        hashes_per_bucket=config.hashes_per_bucket,
        seed=config.seed,
        hash=config.hash,
        contamination_ngram=0 if decontamination is None else decontamination.ngram,
        tasks={}
        if decontamination is None
        else {name: _task(name, path) for name, path in decontamination.tasks.items()},
    )


def clusters_section(config: DeduplicationConfig, languages: Mapping[str, str | None]) -> ClustersSection:
    """Return the section of `deduplication.clusters`; `languages` names every source."""
    return ClustersSection(
        method=config.method,
        ngram=config.ngram,
        buckets=config.buckets,
        hashes_per_bucket=config.hashes_per_bucket,
        seed=config.seed,
        hash=config.hash,
        scope=config.scope,
        priority=config.priority,
        remove_contaminated=config.decontamination is not None and config.decontamination.action == "remove",
        report_clusters=config.report_clusters,
        languages=dict(languages),
    )


def section(config: DeduplicationConfig, source: str) -> DeduplicationSection:
    """Return the section of `deduplication`: it only looks up what the clusters say of its source."""
    return DeduplicationSection(source=source)


def check(config: DeduplicationConfig, sources: Mapping[str, str | None]) -> None:
    """Raise `Invalid` where the keys do not fit the sources (name -> language) or the files on disk."""
    for index, name in enumerate(config.priority):
        if name not in sources:
            raise Invalid(
                f"priority[{index}]", f"expected one of {', '.join(sorted(sources))}, got {name}; name a source"
            )
    if config.decontamination is not None:
        for name, path in config.decontamination.tasks.items():
            if not path.is_file():
                raise Invalid(
                    f"decontamination.tasks.{name}", f"expected a file, got {path}, which is none; give its path"
                )


def _task(name: str, path: Path) -> TaskFile:
    try:
        with path.open("rb") as file:
            return TaskFile(sha256=hashlib.file_digest(file, "sha256").hexdigest(), path=path)
    except OSError as error:
        raise ConfigError(
            f"deduplication.decontamination.tasks.{name}: expected a readable file, got {path}: {error}"
        ) from None
