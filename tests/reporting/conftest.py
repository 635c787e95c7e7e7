"""A run that never happened: manifests and files as the other stages write them, small and under full control."""

import dataclasses
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from modalities.documents import DECISION_FIELDS, DOCUMENTS, GroupWriter
from modalities.manifest import Manifest
from modalities.reporting.config import AnalysisConfig, ReportingConfig, section
from modalities.reporting.stage import run
from modalities.work import Result, Upstream, Work, digest_of

SENTENCES = (
    "It was a truth that nobody in the house would have denied before breakfast.",
    "The table grows a row whenever a document comes in.",
    "She walked to the window, and the rain, which had been waiting, began.",
    "Choose Insert - Chart to draw what the selected cells hold.",
    "There was no answer; there had been none on Tuesday either.",
)
STEPS = (200, 400, 600)
SCORES = pa.schema([pa.field("language", pa.string()), pa.field("language_score", pa.float64())])
DECISIONS = pa.schema(DECISION_FIELDS)
HELDOUT_SCORES = pa.schema(
    {
        "id": pa.string(),
        "source": pa.string(),
        "language": pa.string(),
        "bytes": pa.int64(),
        "tokens": pa.int64(),
        "bits": pa.float64(),
    }
)


@dataclasses.dataclass
class FakeRun:
    """Builds upstreams below one folder."""

    folder: Path
    hostile: str = ""
    inputs: dict[str, Upstream] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def upstream(self, node: str, scope: str, *, units: tuple[Upstream, ...] = (), **fields: Any) -> Upstream:
        """Make an instance; equal fields give an equal key."""
        described = {n: v for n, v in fields.items() if n not in ("folder", "salt")}
        key = digest_of(node, scope, fields.get("salt", ""), {n: str(v) for n, v in described.items()})
        folder = fields.pop("folder", self.folder / node / key)
        fields.pop("salt", None)
        folder.mkdir(parents=True, exist_ok=True)
        self.seconds += 3.7
        provenance = {
            "started": f"2026-03-01T12:{int(self.seconds) % 60:02d}:05+0100",
            "elapsed_seconds": 3.7 + len(node),
            "cpu_seconds": 3.1 + len(node),
            "peak_memory_bytes": 150_000_000 + 10_000_000 * len(node),
        }
        manifest = Manifest(
            node=node,
            key=key,
            label=f"{node}({scope})" if scope else node,
            version=1,
            section=fields.pop("section", {}),
            upstream=fields.pop("upstream", {}),
            content=fields.pop("content", digest_of("content", key)),
            units=tuple(u.manifest.key for u in units),
            files={"data.parquet": 123_456},
            provenance=provenance,
            **fields,
        )
        return Upstream(folder=folder, manifest=manifest, units=units)

    def add(self, variant: str, upstream: Upstream) -> Upstream:
        """Put an instance into a variant."""
        self.inputs[f"{variant}/{upstream.manifest.label}"] = upstream
        return upstream


def _texts(rng: np.random.Generator, count: int, hostile: str) -> list[str]:
    lengths = np.exp(rng.normal(2.2, 1.1, count)).astype(int) + 1
    texts = [" ".join(SENTENCES[i] for i in rng.integers(0, len(SENTENCES), n)) for n in lengths]
    return [text if i % 5 else hostile + text for i, text in enumerate(texts)]


def add_source(run_: FakeRun, variants: list[str], source: str, *, documents: int, salt: str = "") -> None:
    """Write ingestion, scores, filtering and deduplication of a source in two units, and put them into variants."""
    rng = np.random.default_rng(len(source))
    nodes: dict[str, list[Upstream]] = {n: [] for n in ("ingestion", "filtering.scores", "filtering", "deduplication")}
    reasons = ("gopher_short_doc", "language", "fineweb_short_line_ratio", "c4_no_terminal_punctuation")
    for unit, count in enumerate((documents // 2, documents - documents // 2)):
        texts = _texts(rng, count, run_.hostile)
        keep = rng.random(count) < 0.7
        unique = rng.random(count) < 0.9
        names = [reasons[i] for i in np.minimum(rng.geometric(0.5, count) - 1, 3)]
        columns: dict[str, tuple[pa.Schema, dict[str, Any], str]] = {
            "ingestion": (
                DOCUMENTS,
                {
                    "id": [f"{source}-{unit}-{i}{run_.hostile}" for i in range(count)],
                    "position": range(count),
                    "text": texts,
                }
                | {"url": [None] * count, "metadata": [None] * count},
                "documents",
            ),
            "filtering.scores": (
                SCORES,
                {
                    "language": rng.choice(["en", "de", "fr"], count, p=[0.8, 0.15, 0.05]),
                    "language_score": rng.random(count),
                },
                "scores",
            ),
            "filtering": (
                DECISIONS,
                {"keep": keep, "reason": [None if k else n for k, n in zip(keep, names, strict=True)]},
                "filtering",
            ),
            "deduplication": (
                DECISIONS,
                {
                    "keep": keep & unique,
                    "reason": [
                        None if k and u else "near_duplicate" if k else "filtering"
                        for k, u in zip(keep, unique, strict=True)
                    ],
                },
                "deduplication",
            ),
        }
        into = {"ingestion": count, "filtering.scores": count, "filtering": count, "deduplication": int(keep.sum())}
        for node, (schema, data, name) in columns.items():
            folder = run_.folder / f"{node}-{source}-{unit}-{salt}"
            folder.mkdir(parents=True)
            with GroupWriter(folder / f"{name}.parquet", schema) as writer:
                writer.write(pa.table({n: list(v) for n, v in data.items()}, schema=schema))
            dropped: dict[str, int] = {}
            if node == "filtering":
                dropped = {r: sum(1 for k, n in zip(keep, names, strict=True) if not k and n == r) for r in reasons}
            if node == "deduplication":
                dropped = {"near_duplicate": int((keep & ~unique).sum())}
            counts = {"documents_in": into[node], "documents_out": into[node] - sum(dropped.values())}
            if node in ("ingestion", "filtering"):
                counts["text_bytes"] = sum(
                    len(t.encode()) for t, k in zip(texts, keep, strict=True) if k or node == "ingestion"
                )
            made = run_.upstream(node, source, folder=folder, counts=counts, dropped=dropped, salt=f"{unit}{salt}")
            nodes[node].append(made)
    last: dict[str, int] = {}
    for node, units in nodes.items():
        total = _sum(u.manifest.counts for u in units)
        dropped = _sum(u.manifest.dropped for u in units)
        whole = run_.upstream(node, source, units=tuple(units), counts=total, dropped=dropped, salt=salt)
        last = dict(total)
        for variant in variants:
            run_.add(variant, whole)
    counts = {"documents_in": last["documents_out"], "documents_out": last["documents_out"], "tokens": 40 * documents}
    tokens = run_.upstream("tokenization", source, counts=counts, salt=salt)
    for variant in variants:
        run_.add(variant, tokens)


def _sum(parts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, number in part.items():
            total[name] = total.get(name, 0) + number
    return total


def add_shared(run_: FakeRun, variants: list[str], sources: list[str]) -> None:
    """Put held-out, clusters, tokenizer, packing and baselines into variants."""
    documents = [
        {"source": sources[0], "id": f"d{i}", "excerpt": run_.hostile + SENTENCES[i], "state": "kept"} for i in range(3)
    ]
    largest = [{"cluster": "0a", "size": 41, "held_out": True, "documents": documents}]
    figures = {s: {"bits_per_byte": 2.1 + 0.1 * i, "bytes": 9000} for i, s in enumerate(sources)}
    made = [
        run_.upstream(
            "heldout", "", info={}, counts={"documents_in": 90, "documents_out": 80}, dropped={"too_short": 10}
        ),
        run_.upstream("deduplication.clusters", "", info={"largest": largest}),
        run_.upstream("tokenization.tokenizer", "", info={"vocab_size": 8192}),
        run_.upstream(
            "packing",
            "",
            info={"sources": {s: {"tokens": 300_000, "share": 1 / len(sources), "epochs": 2.5} for s in sources}},
        ),
        run_.upstream(
            "evaluation.baselines",
            "",
            info={
                "baselines": {
                    "xz": {"bits_per_byte": 2.2, "sources": figures},
                    "bigram": {"bits_per_byte": 2.3, "sources": {s: {"bits_per_byte": 2.35} for s in sources}},
                }
            },
        ),
    ]
    for variant in variants:
        for upstream in made:
            run_.add(variant, upstream)


def add_training(
    run_: FakeRun, variant: str, sources: list[str], *, seed: int = 0, effect: float = 0.0, documents: int = 60
) -> None:
    """Write three segments with metrics, and evaluations of all suites at the last step."""
    rng = np.random.default_rng(zlib.crc32(f"{variant} {seed}".encode()))
    noise = rng.normal(0, 0.002)
    start = 0
    for end in STEPS:
        made = run_.upstream(
            "pretraining",
            f"{start}-{end}",
            info={
                "model": {"dim": 128, "layers": 4},
                "parameters": 1_312_896,
                "tokens_seen": 8192 * end,
                "step": end,
                "tokens_per_second": 14_000.0,
            },
            section={"global_batch_sequences": 64, "sequence_length": 128, "learning_rate": 0.003, "warmup_steps": 20},
            numerics={"device": "cpu", "world_size": 1},
            salt=variant,
        )
        lines = []
        for step in range(start + 2, end + 1, 2):
            loss = 3.1 + 6 * np.exp(-step / 90) + rng.normal(0, 0.05)
            rate = 0.003 * min(1, step / 60) * (0.55 + 0.45 * np.cos(np.pi * step / STEPS[-1]))
            line = {"step": step, "tokens": 8192 * step, "loss": loss, "learning_rate": rate}
            lines.append(
                line
                | {"grad_norm": float(np.exp(rng.normal(-0.5, 0.3))), "tokens_per_second": 14_000 + rng.normal(0, 500)}
            )
        lines.append({"step": end, "validation": {s: {"bits_per_byte": 1.8} for s in sources}})
        (made.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        run_.add(variant, made)
        add_heldout_scores(
            run_, variant, sources, step=end, shift=effect + noise + 0.8 * np.exp(-end / 200), documents=documents
        )
        start = end
    text = {
        "source": sources[0],
        "document": "d1",
        "seed": 1,
        "prompt": "The rain",
        "text": f" began. {run_.hostile}{SENTENCES[0]}",
    }
    samples = run_.upstream(
        "evaluation", "600/samples", info={"suite": "samples", "step": 600, "samples": [text] * 4}, salt=variant
    )
    run_.add(variant, samples)
    metrics = {
        "accuracy": {"mean": 0.41, "stderr": 0.024, "items": 400, "chance": 0.25, "centred": 0.21},
        "bits_per_byte": {"mean": 1.93, "stderr": 0.02, "items": 400},
    }
    tasks = {"continuation": {"version": 1, "items": 400, "metrics": metrics}}
    evaluated = run_.upstream(
        "evaluation", "600/tasks", info={"suite": "tasks", "step": 600, "tasks": tasks}, salt=variant
    )
    items = pa.schema([("task", pa.string()), ("item", pa.int64()), ("group", pa.string()), ("accuracy", pa.float64())])
    with GroupWriter(evaluated.folder / "items.parquet", items) as writer:
        hits = (rng.random(400) < 0.41).astype(float)
        columns = {
            "task": ["continuation"] * 400,
            "item": list(range(400)),
            "group": [f"g{i // 2}" for i in range(400)],
        }
        writer.write(pa.table(columns | {"accuracy": hits}, schema=items))
    run_.add(variant, evaluated)
    run_.add(variant, run_.upstream("conversion", "600", salt=variant))


def add_heldout_scores(
    run_: FakeRun, variant: str, sources: list[str], *, step: int, shift: float, documents: int
) -> None:
    """Write one evaluation of suite `heldout` whose figure moves by `shift` bits per byte."""
    fixed, own = np.random.default_rng(5), np.random.default_rng(zlib.crc32(f"{variant} {step}".encode()))
    names = [s for s in sources for _ in range(documents)]
    sizes = fixed.integers(500, 5000, len(names))
    rates = 1.6 + fixed.normal(0, 0.2, len(names)) + shift + own.normal(0, 0.01, len(names))
    bits = rates * sizes
    info: dict[str, Any] = {
        "suite": "heldout",
        "step": step,
        "window": 256,
        "documents": len(names),
        "bytes": int(sizes.sum()),
    }
    info["bits_per_byte"] = float(bits.sum() / sizes.sum())
    info["sources"] = {
        s: {"documents": documents, "bits_per_byte": float(bits[at].sum() / sizes[at].sum())}
        for s in sources
        for at in [[i for i, n in enumerate(names) if n == s]]
    }
    info["languages"] = {"en": {"documents": 100, "bits_per_byte": 1.7}, "de": {"documents": 20, "bits_per_byte": 2.0}}
    info["lengths"] = {
        "under 1 KiB": {"documents": 70, "bits_per_byte": 1.9},
        "empty": {"documents": 0, "bits_per_byte": None},
    }
    made = run_.upstream("evaluation", f"{step}/heldout", info=info, salt=variant)
    with GroupWriter(made.folder / "documents.parquet", HELDOUT_SCORES) as writer:
        columns = {"id": [f"h{i}" for i in range(len(names))], "source": names, "language": ["en"] * len(names)}
        writer.write(pa.table(columns | {"bytes": sizes, "tokens": sizes // 4, "bits": bits}, schema=HELDOUT_SCORES))
    run_.add(variant, made)


@pytest.fixture
def fake_run(tmp_path: Path) -> Callable[..., FakeRun]:
    """Return a function that makes a run: one variant, or arms with effects and seeds."""

    def make(
        *, arms: Mapping[str, float] | None = None, seeds: tuple[int, ...] = (), hostile: str = "", documents: int = 300
    ) -> FakeRun:
        made = FakeRun(folder=tmp_path / "store", hostile=hostile)
        names = {
            f"{arm},seed={seed}" if seeds else arm: (effect, seed)
            for arm, effect in (arms or {"base": 0.0}).items()
            for seed in (seeds or (0,))
        }
        sources = ["help", "novels"]
        for source in sources:
            add_source(made, list(names), source, documents=documents)
        add_shared(made, list(names), sources)
        for name, (effect, seed) in names.items():
            add_training(made, name, sources, seed=seed, effect=effect)
        return made

    return make


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., tuple[Path, Result]]:
    """Return a function that writes the report of inputs."""

    def write(
        inputs: Mapping[str, Upstream],
        *,
        run_name: str = "demo",
        labels: Mapping[str, Mapping[str, Any]] | None = None,
        config: ReportingConfig | None = None,
        analysis: AnalysisConfig | None = None,
        config_yaml: str = "run: demo\npretraining:\n  learning_rate: 0.003\n",
    ) -> tuple[Path, Result]:
        folder = tmp_path / "report"
        folder.mkdir(exist_ok=True)
        chosen = section(
            config or ReportingConfig(),
            analysis or AnalysisConfig(),
            run=run_name,
            config_yaml=config_yaml,
            variants=labels or {},
        )
        work = Work(
            node="reporting",
            key="k",
            label="reporting",
            section=chosen,
            inputs=inputs,
            folder=folder,
            cache=tmp_path / "cache",
        )
        return folder, run(work)

    return write
