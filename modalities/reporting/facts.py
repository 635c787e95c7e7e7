"""All that the report says about a run, as plain data: what `report.json` holds and what the page is made from."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from modalities.reporting.config import ReportingSection
from modalities.reporting.funnel import Funnel, read_funnels
from modalities.reporting.instances import Instance, by_variant, first, read_instances
from modalities.reporting.provenance import Artefact, read_artefacts
from modalities.reporting.scores import (
    Heldout,
    Sample,
    Task,
    read_baselines,
    read_heldout,
    read_samples,
    read_tasks,
)
from modalities.reporting.study import Study, read_study, split_names
from modalities.reporting.throughput import Throughput, read_throughput
from modalities.reporting.training import Training, read_training
from modalities.reporting.trust import Trust, read_trust
from modalities.work import Upstream

MOST_POINTS = 9_000
"""Points of one chart, over all its curves: keeps a page of 24 variants below 5 MB."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixture:
    """What a variant's training read of one source."""

    variant: str
    source: str
    documents: int | None
    tokens: int
    share: float | None
    epochs: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """Documents that deduplication found to be the same."""

    size: int
    held_out: bool
    excerpt: str
    members: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """A run. Parts that it lacks are empty or None."""

    variants: tuple[str, ...]
    headline: Mapping[str, Any]
    funnels: tuple[Funnel, ...]
    mixtures: tuple[Mixture, ...]
    clusters: tuple[Cluster, ...]
    heldout_info: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    training: tuple[Training, ...]
    heldout: tuple[Heldout, ...]
    baselines: Mapping[str, Mapping[str, float]]
    tasks: Mapping[str, tuple[Task, ...]]
    trust: tuple[Trust, ...]
    throughput: tuple[Throughput, ...]
    samples: Mapping[str, tuple[Sample, ...]]
    artefacts: tuple[Artefact, ...]
    study: Study | None


def read_facts(inputs: Mapping[str, Upstream], *, section: ReportingSection) -> Facts:
    """Read everything once."""
    instances = read_instances(inputs)
    variants = by_variant(instances)
    options = section.reporting
    points = max(50, min(options.curve_points, MOST_POINTS // max(1, len(variants))))
    training = [t for v, own in variants.items() if (t := read_training(v, own, points=points)) is not None]
    heldout = [h for v, own in variants.items() if (h := read_heldout(v, own)) is not None]
    tasks = {v: tuple(found) for v, own in variants.items() if (found := read_tasks(own))}
    trust = read_trust(tasks, {v: arm for v, (arm, _) in split_names(list(variants)).items()})
    artefacts = read_artefacts(instances)
    clusters = first(instances, "deduplication.clusters")
    tokenizer, held = first(instances, "tokenization.tokenizer"), first(instances, "heldout")
    return Facts(
        variants=tuple(variants),
        headline=_headline(training, heldout, artefacts),
        funnels=tuple(read_funnels(variants, examples=options.examples, characters=options.excerpt_characters)),
        mixtures=tuple(m for v, own in variants.items() for m in _mixtures(v, own)),
        clusters=_clusters(clusters, most=options.clusters, characters=options.excerpt_characters),
        heldout_info={} if held is None else dict(held.info),
        tokenizer={} if tokenizer is None else dict(tokenizer.info),
        training=tuple(training),
        heldout=tuple(heldout),
        baselines=read_baselines(instances),
        tasks=tasks,
        trust=tuple(trust),
        throughput=read_throughput(instances),
        samples={v: tuple(texts) for v, own in variants.items() if (texts := read_samples(own))},
        artefacts=tuple(artefacts),
        study=read_study(variants, section=section, trust=trust) if len(variants) > 1 else None,
    )


def _headline(
    training: Sequence[Training], heldout: Sequence[Heldout], artefacts: Sequence[Artefact]
) -> dict[str, Any]:
    """Collect the figures of the first lines; what is unknown is left out."""
    cpu = [a.cpu_seconds for a in artefacts if a.cpu_seconds is not None]
    elapsed = [a.elapsed_seconds for a in artefacts if a.elapsed_seconds is not None]
    memory = [a.peak_memory_bytes for a in artefacts if a.peak_memory_bytes is not None]
    started = [a.started for a in artefacts if a.started is not None]
    figures = {
        "num_parameters": training[0].num_parameters if training else None,
        "steps": training[0].last_step if training else None,
        "tokens": training[0].tokens if training else None,
        "bits_per_byte": dict(heldout[0].bits_per_byte) if heldout else None,
        "cpu_seconds": sum(cpu) if cpu else None,
        "elapsed_seconds": sum(elapsed) if elapsed else None,
        "peak_memory_bytes": max(memory) if memory else None,
        "started": min(started) if started else None,
    }
    return {name: value for name, value in figures.items() if value is not None}


def _clusters(instance: Instance | None, *, most: int, characters: int) -> tuple[Cluster, ...]:
    if instance is None:
        return ()
    found = []
    for entry in instance.info.get("largest", ())[:most]:
        documents = entry["documents"]
        found.append(
            Cluster(
                size=int(entry["size"]),
                held_out=bool(entry["held_out"]),
                excerpt=str(documents[0]["excerpt"])[:characters] if documents else "",
                members=tuple(f"{d['source']}: {d['id']} ({d['state']})" for d in documents),
            )
        )
    return tuple(found)


def _mixtures(variant: str, instances: Sequence[Instance]) -> list[Mixture]:
    packing = first(instances, "packing")
    if packing is None:
        return []
    sources = packing.info.get("sources", {})
    return [
        Mixture(
            variant=variant,
            source=name,
            documents=figures.get("documents"),
            tokens=int(figures["tokens"]),
            share=figures.get("share"),
            epochs=figures.get("epochs"),
        )
        for name, figures in sources.items()
    ]
