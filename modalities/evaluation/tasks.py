"""Suite `tasks`: lm-eval on the converted model, offline, with the results of every item.

Writes `items.parquet` (`ITEMS`). Accuracies are recomputed from the log-likelihoods; lm-eval's own figures stand beside them.
"""

import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from modalities.documents import GROUP_ROWS, GroupWriter
from modalities.errors import ConfigError, DivergedError, InputError
from modalities.evaluation import continuation
from modalities.evaluation.compute import pick_device, record
from modalities.evaluation.config import EvaluationSection, TaskConfig, task_files
from modalities.work import Result, Work, digest_of

SCHEMA = 1
ITEMS = pa.schema(
    [
        pa.field("task", pa.string(), nullable=False),
        pa.field("item", pa.int64(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("group", pa.string()),
        pa.field("gold", pa.int64()),
        pa.field("log_likelihoods", pa.list_(pa.float64()), nullable=False),
        pa.field("choice_bytes", pa.list_(pa.int64()), nullable=False),
        pa.field("accuracy", pa.float64()),
        pa.field("accuracy_norm", pa.float64()),
        pa.field("bits_per_byte", pa.float64()),
        pa.field("probability", pa.float64()),
        pa.field("chance", pa.float64()),
        pa.field("response", pa.string()),
        pa.field("truncated", pa.bool_(), nullable=False),
    ]
)
"""`log_likelihoods`: nats, per choice. `group`: items with equal values are not independent. Null: not of this kind of task."""

METRICS = ("accuracy", "accuracy_norm", "bits_per_byte", "probability")
"""Of multiple choice. accuracy: the likeliest choice is right; _norm: per character, as lm-eval's acc_norm. bits_per_byte: of the
right answer. probability: of the right answer among the choices."""


def run_tasks(work: Work[EvaluationSection]) -> Result:
    """Run all tasks of the section in one child process."""
    section = work.section
    assert section.tasks is not None
    device = pick_device(section.compute)
    _check_files(section)
    with tempfile.TemporaryDirectory(prefix="modalities-") as scratch:
        own = None
        if section.continuation is not None:
            own = continuation.write_task(work.inputs["heldout"], section.continuation, Path(scratch))
        answers = _ask(_request(work, own, device), section.tasks, Path(scratch), work)
    rows = [row for answer in answers for row in item_rows(answer)]
    _check_finite(rows, work.label)
    with GroupWriter(work.folder / "items.parquet", ITEMS) as writer:
        for start in range(0, len(rows), GROUP_ROWS):
            writer.write(pa.Table.from_pylist(rows[start : start + GROUP_ROWS], schema=ITEMS))
        content = writer.content()
    tasks = {}
    for answer in answers:
        own_rows = [row for row in rows if row["task"] == answer["name"]]
        tasks[answer["name"]] = summary(answer, own_rows, section.tasks[answer["asked"]])
    return Result(
        content=digest_of(SCHEMA, "tasks", content, {name: task["lm_eval"] for name, task in tasks.items()}),
        counts={"items": len(rows), "items_truncated": sum(row["truncated"] for row in rows)},
        info={"schema": SCHEMA, "suite": "tasks", "step": section.step, "tasks": tasks},
        numerics=record(section.compute, device),
    )


def _check_files(section: EvaluationSection) -> None:
    """Raise `InputError` if a task file is not the one that the plan saw."""
    for name, task in (section.tasks or {}).items():
        for label, path in task_files(task.file, name) if task.file is not None else ():
            expected = section.files.get(f"{name}/{label}")
            got = hashlib.sha256(path.read_bytes()).hexdigest()
            if got != expected:
                raise InputError(f"{path}: expected SHA-256 {expected} as in the plan, got {got}; plan again")


def _request(work: Work[EvaluationSection], own: Mapping[str, Any] | None, device: str) -> dict[str, Any]:
    section, model = work.section, work.inputs["conversion"].folder
    context = json.loads((model / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
    return {
        "model": str(model.resolve()),
        "device": device,
        "threads": section.compute.threads,
        "batch_size": max(1, section.compute.batch_tokens // context),
        "tasks": [
            {
                "name": name,
                "file": None if task.file is None else str(task.file.resolve()),
                "config": own if name == continuation.NAME else None,
                "fewshot": task.fewshot,
                "limit": task.limit,
            }
            for name, task in sorted((section.tasks or {}).items())
        ],
    }


def _ask(
    request: Mapping[str, Any], tasks: Mapping[str, TaskConfig], scratch: Path, work: Work[EvaluationSection]
) -> list[dict[str, Any]]:
    """Put the request to lm-eval and return its answer."""
    asked, answer = scratch / "request.json", scratch / "answer.json"
    asked.write_text(json.dumps(request), encoding="utf-8")
    local = all(task.file is not None or name == continuation.NAME for name, task in tasks.items())
    run_harness(asked, answer, environment=_environment(request, scratch if local else None), work=work)
    done = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in done:
        raise InputError(done["error"]["message"])
    found: list[dict[str, Any]] = done["tasks"]
    return found


def run_harness(asked: Path, answer: Path, *, environment: Mapping[str, str], work: Work[EvaluationSection]) -> None:
    """Run the child process to its end."""
    log = answer.with_name("log.txt")
    command = [sys.executable, "-m", "modalities.evaluation.harness", str(asked), str(answer)]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("progress "):
                _, done, total, name = line.split(maxsplit=3)
                work.progress.update(float(done), float(total), unit="tasks", task=name.strip())
    if child.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise RuntimeError(f"{work.label}: lm-eval ended with exit code {child.returncode}:\n{tail}")


def _environment(request: Mapping[str, Any], cache: Path | None) -> dict[str, str]:
    """Return the child's environment: offline, and with caches of its own unless tasks come from the user's cache."""
    environment = dict(os.environ) | {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(request["threads"]),
    }
    package_root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    if cache is not None:
        environment |= {"HF_HOME": str(cache / "hub"), "HF_DATASETS_CACHE": str(cache / "datasets")}
    return environment


# --- figures ---------------------------------------------------------------------------------------------------------


def item_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of `ITEMS` for one task's answer."""
    return [_row(answer["name"], item) for item in answer["items"]]


def _row(task: str, item: Mapping[str, Any]) -> dict[str, Any]:
    row = {name: item[name] for name in ("item", "source", "group", "gold", "log_likelihoods", "response", "truncated")}
    row |= {"task": task, "choice_bytes": [], **dict.fromkeys((*METRICS, "chance"))}
    choices, gold = item["choices"], item["gold"]
    if choices is None or gold is None:
        return row
    nats = np.array(item["log_likelihoods"][: len(choices)], np.float64)
    num_bytes = [len(choice.encode("utf-8")) for choice in choices]
    characters = np.array([max(1, len(choice)) for choice in choices], np.float64)
    return row | {
        "choice_bytes": num_bytes,
        "accuracy": float(np.argmax(nats) == gold),
        "accuracy_norm": float(np.argmax(nats / characters) == gold),
        "bits_per_byte": float(-nats[gold] / math.log(2) / max(1, num_bytes[gold])),
        "probability": float(1 / np.exp(nats - nats[gold]).sum()),
        "chance": 1 / len(choices),
    }


def _check_finite(rows: Sequence[Mapping[str, Any]], label: str) -> None:
    for row in rows:
        if not np.isfinite(row["log_likelihoods"]).all():
            raise DivergedError(
                f"{label}: {row['task']}, item {row['item']}: expected finite log-likelihoods, got "
                f"{row['log_likelihoods']}; see the loss curve of this training"
            )


def summary(answer: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], task: TaskConfig) -> dict[str, Any]:
    """Return the figures of one task: its own metrics with standard errors and chance, and lm-eval's."""
    figures: dict[str, Any] = {}
    if rows and rows[0]["accuracy"] is not None:
        figures = {name: estimate(rows, name) for name in METRICS}
    theirs = dict(answer["metrics"])
    if task.metrics is not None:
        known = [*figures, *theirs]
        for name in task.metrics:
            if name not in known:
                raise ConfigError(
                    f"evaluation.tasks.{answer['asked']}.metrics: expected some of {', '.join(known)}, got {name!r}; change it"
                )
        figures = {name: value for name, value in figures.items() if name in task.metrics}
        theirs = {name: value for name, value in theirs.items() if name in task.metrics}
    sources = sorted({row["source"] for row in rows if row["source"] is not None})
    return {
        "version": answer["version"],
        "output_type": answer["output_type"],
        "fewshot": task.fewshot,
        "items": len(rows),
        "items_truncated": sum(row["truncated"] for row in rows),
        "metrics": figures,
        "sources": {
            source: {name: estimate([row for row in rows if row["source"] == source], name) for name in figures}
            for source in sources
        },
        "lm_eval": theirs,
    }


def estimate(rows: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """Return mean, standard error (items of one group count as dependent), and for accuracies chance and the centred score."""
    values = np.array([row[metric] for row in rows], np.float64)
    groups = [row["group"] if row["group"] is not None else f"item {row['item']}" for row in rows]
    mean = float(values.mean())
    sums: dict[str, float] = {}
    for group, value in zip(groups, values, strict=True):
        sums[group] = sums.get(group, 0.0) + float(value) - mean
    error = math.sqrt(sum(part * part for part in sums.values())) / len(rows) if len(sums) > 1 else None
    figures: dict[str, Any] = {"mean": mean, "stderr": error, "items": len(rows)}
    if metric in ("accuracy", "accuracy_norm", "probability"):
        chance = float(np.mean([row["chance"] for row in rows]))
        figures |= {"chance": chance, "centred": (mean - chance) / (1 - chance) if chance < 1 else None}
    return figures
