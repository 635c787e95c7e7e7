"""The node `packing`: sequence records for each token shard, then the merged index.

Info of a unit: source, shard, method, padding_share, cut_share. Info of the instance: sequence_length, method, sources
(units, sequences, documents, tokens, pairs, padding_share, share, epochs), phases, deviation_sequences, budget_tokens. `share` is
the share of the tokens that training reads, and `epochs` how often it reads the source, over the budget; without a budget
`share` is that of the first phase by slots, and `epochs` is null.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from modalities.errors import StoreError
from modalities.packing import index as merged
from modalities.packing import records
from modalities.packing.config import PackingSection, PackingUnitSection
from modalities.tokens import Shard
from modalities.work import Result, Upstream, Work, digest_of, sum_counts


def run_unit(work: Work[PackingUnitSection]) -> Result:
    """Write the sequence records of one token shard."""
    section, upstream = work.section, work.inputs["tokenization"]
    shard = Shard(upstream.folder / "tokens")
    if section.method == "concatenate":
        blocks = records.concatenate(shard.offsets, sequence_length=section.sequence_length)
    else:
        assert section.window_documents is not None
        blocks = records.best_fit(
            shard.offsets, sequence_length=section.sequence_length, window_documents=section.window_documents
        )
    made, checksum = records.write(work.folder, blocks, section=section, shard=shard)
    empty = int((shard.offsets[1:] == shard.offsets[:-1]).sum())
    dropped = {"empty": empty, "no_target": shard.num_documents - empty - made.documents}
    return Result(
        content=digest_of(upstream.content, dataclasses.asdict(made), checksum),
        counts={
            "documents_in": shard.num_documents,
            "documents_out": made.documents,
            "tokens": made.tokens,
            "sequences": made.sequences,
            "pairs": made.pairs,
            "padding_tokens": made.padding_tokens,
            "cut_documents": made.cut_documents,
        },
        dropped={reason: number for reason, number in dropped.items() if number > 0},
        info={
            "source": work.unit["source"],
            "shard": upstream.content,
            "method": made.method,
            "padding_share": _ratio(made.padding_tokens, made.sequences * made.sequence_length),
            "cut_share": _ratio(made.cut_documents, made.documents),
        },
    )


def gather(work: Work[PackingSection]) -> Result:
    """Merge the counts of all units into `index.json`; check the budget if it is known."""
    section = work.section
    sources = tuple(_source(name, _units_of(name, work)) for name in section.sources)
    if sum(len(source.units) for source in sources) != len(work.own_units):
        strange = sorted({str(unit.manifest.info["source"]) for unit in work.own_units} - set(section.sources))
        raise StoreError(f"packing: expected units of {', '.join(section.sources)}, got some of {', '.join(strange)}")
    index = merged.build(sources, section)
    merged.write(work.folder, index)
    counts, dropped = sum_counts(tuple(unit.manifest for unit in work.own_units))
    contents = dataclasses.asdict(index)
    for source in contents["sources"]:
        source["units"] = [{name: unit[name] for name in unit if name != "key"} for unit in source["units"]]
    info = {
        "sequence_length": index.sequence_length,
        "method": index.method,
        "sources": _summaries(index, section),
        "phases": [dataclasses.asdict(phase) for phase in index.phases],
        "deviation_sequences": index.deviation,
        "budget_tokens": section.budget_tokens,
    }
    return Result(content=digest_of(contents), counts=counts, dropped=dropped, info=info)


def _units_of(name: str, work: Work[PackingSection]) -> Sequence[Upstream]:
    """Return this source's units; raise `StoreError` unless they were made of the source's shards, in their order."""
    units = [unit for unit in work.own_units if unit.manifest.info["source"] == name]
    role = f"tokenization:{name}"
    if role in work.inputs:
        made_of = [unit.manifest.info["shard"] for unit in units]
        if made_of != [shard.content for shard in work.inputs[role].units]:
            raise StoreError(
                f"{work.label}: expected records of the {len(work.inputs[role].units)} token shards of {name}, got "
                f"{len(units)} of other shards or in another order; run packing again"
            )
    return units


def _source(name: str, units: Sequence[Upstream]) -> merged.Source:
    counts, _ = sum_counts(tuple(unit.manifest for unit in units))
    return merged.Source(
        name=name,
        units=tuple(
            merged.Unit(
                key=unit.manifest.key,
                content=unit.content,
                shard=unit.manifest.info["shard"],
                sequences=unit.manifest.counts["sequences"],
            )
            for unit in units
        ),
        sequences=counts.get("sequences", 0),
        documents=counts.get("documents_out", 0),
        tokens=counts.get("tokens", 0),
        pairs=counts.get("pairs", 0),
    )


def _summaries(index: merged.Index, section: PackingSection) -> dict[str, dict[str, Any]]:
    """Return the figures of each source; raise `ConfigError` where the budget needs too many epochs."""
    read: dict[str, float] = {**index.phases[0].slots}
    epochs: dict[str, float] = {}
    if section.budget_tokens is not None:
        needed = -(-section.budget_tokens // index.sequence_length)
        report = merged.check_budget(index, sequences=needed, max_epochs=section.max_epochs)
        read = {used.source: used.tokens for used in report}
        epochs = {used.source: used.epochs for used in report}
    return {
        source.name: {
            "units": len(source.units),
            "sequences": source.sequences,
            "documents": source.documents,
            "tokens": source.tokens,
            "pairs": source.pairs,
            "padding_share": _ratio(
                source.sequences * index.sequence_length - source.pairs, source.sequences * index.sequence_length
            ),
            "share": _ratio(read[source.name], sum(read.values())),
            "epochs": epochs.get(source.name),
        }
        for source in index.sources
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
