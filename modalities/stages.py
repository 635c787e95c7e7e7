"""THE table: what a run consists of, in the order of the data's way. Command line, plan, rules and tests all read it.

`NODES` says for each kind of plan node where its function is and how it splits into units. `RunConfig` is the whole YAML file.
`expand` turns one resolved config (one arm of a study) into the nodes of that arm: for each its section, which holds
every key the node reads and no other, and the nodes it reads from.

Imports the config modules of all stages and nothing heavy.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from modalities.config import Tree, key
from modalities.conversion import config as conversion_config
from modalities.deduplication import config as deduplication_config
from modalities.errors import Invalid
from modalities.evaluation import config as evaluation_config
from modalities.filtering import config as filtering_config
from modalities.ingestion import config as ingestion_config
from modalities.packing import config as packing_config
from modalities.pretraining import benchmarking_config
from modalities.pretraining import config as pretraining_config
from modalities.reporting import config as reporting_config
from modalities.tokenization import config as tokenization_config

Split = Literal["none", "files", "aligned", "concatenated"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One row of the table."""

    name: str
    module: str
    """Module that holds `run`, or `run_unit` and perhaps `gather`."""
    section: type
    help: str
    split: Split = "none"
    """files: a unit per input file; aligned: a unit per unit of its inputs; concatenated: per unit of all its inputs."""
    unit_section: type | None = None
    """What units depend on, where that is less than what the instance depends on."""
    documents_from: str | None = None
    """Role whose documents_out must be this node's documents_in."""
    memory_mb: int = 1500
    devices: bool = False
    """Whether it may ask for accelerators."""

    @property
    def stage(self) -> str:
        """Package folder, rule file, subcommand and config section."""
        return "filtering" if self.name == "heldout" else self.name.partition(".")[0]

    @property
    def rule(self) -> str:
        """Name of the Snakemake rule."""
        return self.name.replace(".", "_")

    @property
    def sharded(self) -> bool:
        """Whether it consists of units."""
        return self.split != "none"


_TABLE = (
    Node(
        name="ingestion",
        module="modalities.ingestion.stage",
        section=ingestion_config.IngestionSection,
        help="Read WARC, JSONL, Parquet or text into documents.",
        split="files",
    ),
    Node(
        name="heldout",
        module="modalities.filtering.heldout",
        section=filtering_config.HeldoutSection,
        help="Draw the held-out documents, before any filter.",
    ),
    Node(
        name="filtering.scores",
        module="modalities.filtering.scores",
        section=filtering_config.ScoresSection,
        help="Compute the counts and ratios that the rules need.",
        split="aligned",
        memory_mb=2000,
    ),
    Node(
        name="filtering",
        module="modalities.filtering.decisions",
        section=filtering_config.DecisionSection,
        help="Apply thresholds: keep flag and drop reason per document.",
        split="aligned",
        documents_from="ingestion",
    ),
    Node(
        name="deduplication.signatures",
        module="modalities.deduplication.signatures",
        section=deduplication_config.SignaturesSection,
        help="Compute text hashes and MinHash signatures.",
        split="aligned",
        memory_mb=2000,
    ),
    Node(
        name="deduplication.clusters",
        module="modalities.deduplication.clusters",
        section=deduplication_config.ClustersSection,
        help="Find duplicates over all units; held-out documents win their clusters.",
        memory_mb=2000,
    ),
    Node(
        name="deduplication",
        module="modalities.deduplication.stage",
        section=deduplication_config.DeduplicationSection,
        help="Mark the documents that leave.",
        split="aligned",
        documents_from="filtering",
    ),
    Node(
        name="tokenization.tokenizer",
        module="modalities.tokenization.tokenizer",
        section=tokenization_config.TokenizerSection,
        help="Train a byte-level BPE, or import a tokenizer.",
        memory_mb=2000,
    ),
    Node(
        name="tokenization",
        module="modalities.tokenization.stage",
        section=tokenization_config.TokenizationSection,
        help="Encode the kept documents into token shards.",
        split="aligned",
        documents_from="deduplication",
    ),
    Node(
        name="tokenization.heldout",
        module="modalities.tokenization.heldout",
        section=tokenization_config.HeldoutTokensSection,
        help="Encode the held-out documents.",
    ),
    Node(
        name="packing",
        module="modalities.packing.stage",
        section=packing_config.PackingSection,
        unit_section=packing_config.PackingUnitSection,
        help="Cut token shards into sequences and merge their counts.",
        split="concatenated",
    ),
    Node(
        name="pretraining",
        module="modalities.pretraining.stage",
        section=pretraining_config.SegmentSection,
        help="Train from one boundary step to the next.",
        memory_mb=3000,
        devices=True,
    ),
    Node(
        name="pretraining.benchmarking",
        module="modalities.pretraining.benchmarking",
        section=benchmarking_config.BenchmarkingSection,
        help="Measure how fast one layout trains on this machine.",
        memory_mb=3000,
        devices=True,
    ),
    Node(
        name="conversion",
        module="modalities.conversion.stage",
        section=conversion_config.ConversionSection,
        help="Write a stock Hugging Face directory and verify it.",
        memory_mb=3000,
    ),
    Node(
        name="evaluation",
        module="modalities.evaluation.stage",
        section=evaluation_config.EvaluationSection,
        help="Measure bits per byte, generate samples, run tasks.",
        memory_mb=3000,
        devices=True,
    ),
    Node(
        name="evaluation.baselines",
        module="modalities.evaluation.baselines",
        section=evaluation_config.BaselinesSection,
        help="Measure xz and a token bigram on the held-out text.",
        memory_mb=2000,
    ),
    Node(
        name="reporting",
        module="modalities.reporting.stage",
        section=reporting_config.ReportingSection,
        help="Write the report.",
    ),
)
NODES: Mapping[str, Node] = {node.name: node for node in _TABLE}
STAGES: tuple[str, ...] = tuple(dict.fromkeys(node.stage for node in _TABLE))
_CONFIGS = {
    "ingestion": ingestion_config,
    "filtering": filtering_config,
    "deduplication": deduplication_config,
    "tokenization": tokenization_config,
    "packing": packing_config,
    "pretraining": pretraining_config,
    "conversion": conversion_config,
    "evaluation": evaluation_config,
    "reporting": reporting_config,
}


def version(node: str) -> int:
    """Return the stage version of a node: raised by hand when the same config gives another output."""
    versions: Mapping[str, int] = _CONFIGS[NODES[node].stage].VERSIONS
    return versions[node]


def result_packages(node: str) -> tuple[str, ...]:
    """Return the packages whose version changes what a node makes."""
    named: Any = getattr(_CONFIGS[NODES[node].stage], "RESULT_PACKAGES", ())
    return tuple(named.get(node, ()) if isinstance(named, Mapping) else named)


# --- the whole YAML file ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationsConfig:
    """A study: several arms that differ in named keys. Shared work is done once."""

    grid: dict[str, Tree] = key(factory=dict, help="Dotted key -> list of values; every combination is an arm.")
    zip: dict[str, Tree] = key(
        factory=dict, help="Dotted key -> list of values; lists of one length, read side by side."
    )
    variants: dict[str, Tree] = key(factory=dict, help="Arm name -> mapping of dotted keys to values.")
    seeds: tuple[int, ...] = key(
        (), help="Each arm runs once per seed, which sets data and initialisation seed together."
    )
    seed_keys: tuple[str, ...] = key(("pretraining.data_seed", "pretraining.init_seed"), help="Keys that `seeds` sets.")
    baseline: str | None = key(None, help="Arm that gives tokenizer and held-out set; by default the first.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuntimeConfig:
    """Where and how jobs run; changes no result."""

    store: Path = key(Path("results/store"), kind="runtime", help="Folder of finished work; may be shared by runs.")
    batches: int = key(16, kind="runtime", help="Most jobs into which the units of one node are gathered.")

    def __post_init__(self) -> None:
        if self.batches < 1:
            raise Invalid("batches", f"expected 1 or more, got {self.batches}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One YAML file."""

    run: str = key(help="Name of the run: a folder below results/runs.")
    ingestion: ingestion_config.IngestionConfig = key(help="Sources of raw text.")
    heldout: filtering_config.HeldoutConfig = key(
        factory=filtering_config.HeldoutConfig, help="Documents that no arm trains on."
    )
    filtering: filtering_config.FilteringConfig = key(
        factory=filtering_config.FilteringConfig, help="Which documents are good enough."
    )
    deduplication: deduplication_config.DeduplicationConfig = key(
        factory=deduplication_config.DeduplicationConfig, help="Which documents repeat others."
    )
    tokenization: tokenization_config.TokenizationConfig = key(
        factory=tokenization_config.TokenizationConfig, help="The tokenizer and how text is encoded."
    )
    packing: packing_config.PackingConfig = key(factory=packing_config.PackingConfig, help="Sequences and mixture.")
    pretraining: pretraining_config.PretrainingConfig = key(help="Model, optimizer, length.")
    benchmarking: benchmarking_config.BenchmarkingConfig | None = key(
        None, neutral=None, help="Layouts whose speed is measured on the machine at hand."
    )
    conversion: conversion_config.ConversionConfig = key(
        factory=conversion_config.ConversionConfig, help="The Hugging Face directory."
    )
    evaluation: evaluation_config.EvaluationConfig = key(
        factory=evaluation_config.EvaluationConfig, help="What is measured."
    )
    reporting: reporting_config.ReportingConfig = key(factory=reporting_config.ReportingConfig, help="The report.")
    analysis: reporting_config.AnalysisConfig = key(
        factory=reporting_config.AnalysisConfig, help="How arms are compared."
    )
    ablations: AblationsConfig | None = key(None, help="Arms of a study.")
    runtime: RuntimeConfig = key(factory=RuntimeConfig, kind="runtime", help="Where and how jobs run.")

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", self.run):
            raise Invalid(
                "run", f"expected letters, digits, '.', '_' or '-', beginning with a letter or digit, got {self.run!r}"
            )
        _check(self)


def _check(run: RunConfig) -> None:
    """Raise `Invalid` for what no section can see alone."""
    languages = _languages(run)
    sources = tuple(languages)
    if not sources:
        raise Invalid("ingestion.sources", "expected at least one source, got none")
    length = run.packing.sequence_length
    vocabulary = run.tokenization.train.vocab_size if run.tokenization.tokenizer is None else None
    checks: tuple[tuple[str, Callable[[], None]], ...] = (
        ("filtering", lambda: filtering_config.check(run.filtering, languages)),
        ("deduplication", lambda: deduplication_config.check(run.deduplication, languages)),
        ("tokenization", lambda: tokenization_config.check(run.tokenization, sources)),
        (
            "pretraining",
            lambda: pretraining_config.check(run.pretraining, sequence_length=length, vocab_size=vocabulary),
        ),
        ("packing", lambda: packing_config.check(run.packing, sources, budget_tokens=_budget(run))),
        ("benchmarking", lambda: _check_benchmarking(run, vocabulary)),
    )
    for section, check in checks:
        try:
            check()
        except Invalid as error:
            full = error.key if error.key.startswith(f"{section}.") else f"{section}.{error.key}"
            raise Invalid(full, error.message) from None


def _check_benchmarking(run: RunConfig, vocabulary: int | None) -> None:
    if run.benchmarking is not None:
        length = run.packing.sequence_length
        benchmarking_config.check(run.benchmarking, run.pretraining, sequence_length=length, vocab_size=vocabulary)


def _languages(run: RunConfig) -> dict[str, str | None]:
    return {name: source.language for name, source in run.ingestion.sources.items()}


def _budget(run: RunConfig) -> int:
    length = run.packing.sequence_length
    return pretraining_config.total_steps(run.pretraining, length) * pretraining_config.batch_tokens(
        run.pretraining, length
    )


# --- one arm, node by node -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """One node of one arm, before digests."""

    node: str
    scope: str
    section: Any
    inputs: Mapping[str, tuple[str, str]]
    """Role -> (node, scope) that is read."""
    unit_section: Any = None
    shared: bool = False
    """Whether all arms take the baseline's."""

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.node}({self.scope})" if self.scope else self.node


def expand(run: RunConfig) -> Iterator[Spec]:
    """Yield the nodes of one arm in an order in which every node comes after those it reads. The report comes later."""
    yield from _data(run)
    yield from _tokens(run)
    yield from _benchmarks(run)
    yield from _model(run)


def _data(run: RunConfig) -> Iterator[Spec]:
    languages = _languages(run)
    for s in languages:
        yield Spec(node="ingestion", scope=s, section=ingestion_config.section(run.ingestion, s), inputs={})
    yield Spec(
        node="heldout",
        scope="",
        section=filtering_config.heldout_section(run.heldout, languages),
        inputs={f"ingestion:{s}": ("ingestion", s) for s in languages},
        shared=True,
    )
    for s, language in languages.items():
        read = {"ingestion": ("ingestion", s), "scores": ("filtering.scores", s), "filtering": ("filtering", s)}
        yield Spec(
            node="filtering.scores",
            scope=s,
            section=filtering_config.scores_section(run.filtering, s, language),
            inputs=_take(read, "ingestion"),
        )
        yield Spec(
            node="filtering",
            scope=s,
            section=filtering_config.section(run.filtering, s, language),
            inputs=_take(read, "ingestion", "scores"),
        )
        yield Spec(
            node="deduplication.signatures",
            scope=s,
            section=deduplication_config.signatures_section(run.deduplication, language),
            inputs=read,
        )
    yield Spec(
        node="deduplication.clusters",
        scope="",
        section=deduplication_config.clusters_section(run.deduplication, languages),
        inputs={f"signatures:{s}": ("deduplication.signatures", s) for s in languages} | {"heldout": ("heldout", "")},
    )
    for s in languages:
        yield Spec(
            node="deduplication",
            scope=s,
            section=deduplication_config.section(run.deduplication, s),
            inputs={
                "ingestion": ("ingestion", s),
                "filtering": ("filtering", s),
                "signatures": ("deduplication.signatures", s),
                "clusters": ("deduplication.clusters", ""),
            },
        )


def _tokens(run: RunConfig) -> Iterator[Spec]:
    sources = tuple(run.ingestion.sources)
    masks = {
        "ingestion": "ingestion",
        "scores": "filtering.scores",
        "filtering": "filtering",
        "deduplication": "deduplication",
    }
    tokenizer = tokenization_config.tokenizer_section(run.tokenization, sources)
    yield Spec(
        node="tokenization.tokenizer",
        scope="",
        section=tokenizer,
        inputs={f"{role}:{s}": (node, s) for s in tokenizer.sources for role, node in masks.items()},
        shared=not run.tokenization.per_arm,
    )
    for s in sources:
        yield Spec(
            node="tokenization",
            scope=s,
            section=tokenization_config.section(run.tokenization),
            inputs={role: (node, s) for role, node in masks.items()} | {"tokenizer": ("tokenization.tokenizer", "")},
        )
    yield Spec(
        node="tokenization.heldout",
        scope="",
        section=tokenization_config.heldout_section(run.tokenization),
        inputs={"heldout": ("heldout", ""), "tokenizer": ("tokenization.tokenizer", "")},
    )
    yield Spec(
        node="packing",
        scope="",
        section=packing_config.section(run.packing, sources, budget_tokens=_budget(run)),
        unit_section=packing_config.unit_section(run.packing),
        inputs=_shards(run),
    )


def _benchmarks(run: RunConfig) -> Iterator[Spec]:
    if run.benchmarking is None:
        return
    for section in benchmarking_config.sections(run.benchmarking, run.pretraining, run.packing.sequence_length):
        reads = {"tokenizer": ("tokenization.tokenizer", "")}
        yield Spec(node=benchmarking_config.NODE, scope=section.name, section=section, inputs=reads)


def _model(run: RunConfig) -> Iterator[Spec]:
    length = run.packing.sequence_length
    shared = {"heldout": ("heldout", ""), "tokenizer": ("tokenization.tokenizer", "")}
    by_end: dict[int, tuple[str, str]] = {}
    previous: tuple[str, str] | None = None
    planned = pretraining_config.total_steps(run.pretraining, length)
    for segment in pretraining_config.segments(run.pretraining, length):
        segment = dataclasses.replace(segment, max_epochs=run.packing.max_epochs, planned_steps=planned)
        here = ("pretraining", f"{segment.start_step}-{segment.end_step}")
        reads = {"packing": ("packing", "")} | _shards(run) | shared | {"validation": ("tokenization.heldout", "")}
        if previous is not None:
            reads["previous"] = previous
        yield Spec(node=here[0], scope=here[1], section=segment, inputs=reads)
        previous = by_end[segment.end_step] = here
    steps = pretraining_config.evaluation_steps(run.pretraining, length)
    yield from _after_training(run, steps, by_end)
    if run.evaluation.baselines:
        yield Spec(
            node="evaluation.baselines",
            scope="",
            section=evaluation_config.baselines_section(run.evaluation),
            inputs=shared | _shards(run) | {"tokenization.heldout": ("tokenization.heldout", "")},
        )


def _after_training(run: RunConfig, steps: tuple[int, ...], by_end: Mapping[int, tuple[str, str]]) -> Iterator[Spec]:
    notes = {name: {"licence": s.license, "provenance": s.provenance} for name, s in run.ingestion.sources.items()}
    for step in steps:
        last = step == steps[-1]
        suites = evaluation_config.suites(run.evaluation, last=last)
        reads = {"pretraining": by_end[step], "tokenizer": ("tokenization.tokenizer", "")}
        converted = last or run.conversion.steps == "all" or any(map(evaluation_config.needs_conversion, suites))
        if converted:
            section = conversion_config.section(run.conversion, step, notes)
            yield Spec(node="conversion", scope=str(step), section=section, inputs=reads)
        for suite in suites:
            inputs = reads | {"heldout": ("heldout", "")}
            if evaluation_config.needs_conversion(suite):
                inputs["conversion"] = ("conversion", str(step))
            measured = evaluation_config.section(run.evaluation, suite, step)
            yield Spec(node="evaluation", scope=f"{step}/{suite}", section=measured, inputs=inputs)


def _shards(run: RunConfig) -> dict[str, tuple[str, str]]:
    return {f"tokenization:{s}": ("tokenization", s) for s in run.ingestion.sources}


def _take(roles: Mapping[str, tuple[str, str]], *names: str) -> dict[str, tuple[str, str]]:
    return {name: roles[name] for name in names}
