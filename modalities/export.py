"""Materialise what the store holds as masks: the documents a source is trained on, and the documents of one step."""

import gzip
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from modalities import job
from modalities.errors import StoreError
from modalities.plan import Instance, Plan
from modalities.work import Upstream


def documents(plan: Plan, *, source: str, arm: str | None, target: Path) -> None:
    """Write the kept documents of a source as JSONL (id, text, url, and the record's other fields), masked as in training."""
    from modalities import documents as docs

    instance = find(plan, "tokenization", source, arm)
    written = 0
    with _open(target) as file:
        for index in range(len(instance.units)):
            _, inputs = job.unit_inputs(plan, instance, index)
            reader = docs.GroupReader(inputs["ingestion"].folder / "documents.parquet")
            for group in docs.read_groups(inputs, masked=True):
                rows = reader.group(group.index, ["url", "metadata"]).to_pylist()
                for id_, text, keep, row in zip(
                    group.ids.to_pylist(), group.texts.to_pylist(), group.keep, rows, strict=True
                ):
                    if keep:
                        extra = json.loads(row["metadata"]) if row["metadata"] else {}
                        record = {"id": id_, "text": text, "url": row["url"]} | {"metadata": extra}
                        file.write(json.dumps(record, ensure_ascii=False) + "\n")
                        written += 1
    print(f"{target}: {written:,} documents of {source}")


def _open(target: Path) -> IO[str]:
    if target.name.endswith(".gz"):
        return gzip.open(target, "wt", encoding="utf-8")
    if target.name.endswith(".zst"):
        import zstandard

        return io.TextIOWrapper(zstandard.ZstdCompressor().stream_writer(target.open("wb")), encoding="utf-8")
    return target.open("w", encoding="utf-8")


def find(plan: Plan, node: str, scope: str, arm: str | None) -> Instance:
    """Return the instance of a node and scope in one arm, by default the first."""
    name = arm if arm is not None else next(iter(plan.arms))
    if name not in plan.arms:
        raise StoreError(f"--arm: expected one of {', '.join(plan.arms)}, got {arm!r}")
    mine = {i.scope: i for i in plan.instances.values() if i.node == node and name in i.arms}
    if scope not in mine:
        raise StoreError(f"{node}: expected one of {', '.join(mine)}, got {scope!r}")
    return mine[scope]


def show_step(plan: Plan, *, arm: str | None, step: int) -> None:
    """Print the documents of one training step."""
    from modalities.packing import show

    name = arm if arm is not None else next(iter(plan.arms))
    segments = [i for i in plan.instances.values() if i.node == "pretraining" and name in i.arms]
    mine = next((i for i in segments if i.section["start_step"] <= step < i.section["end_step"]), None)
    if mine is None:
        last = max((i.section["end_step"] for i in segments), default=0)
        raise StoreError(f"--step: expected 0 to {last - 1}, got {step}")
    inputs: Mapping[str, Upstream] = {
        role: job.upstream(plan, plan.instances[i]) for role, i in mine.inputs.items() if role != "previous"
    }
    settings: Mapping[str, Any] = mine.section
    shards = {role.partition(":")[2]: up for role, up in inputs.items() if role.startswith("tokenization:")}
    show.documents_of_step(
        inputs["packing"],
        shards,
        tokenizer=inputs["tokenizer"].folder,
        step=step,
        sequences_per_step=settings["global_batch_sequences"],
        data_seed=settings["data_seed"],
    )
