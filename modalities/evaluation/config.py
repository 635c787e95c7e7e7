"""What `evaluation` can be told, and which suites run where. Imports neither torch, transformers nor lm-eval."""

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import yaml

from modalities.config import key
from modalities.errors import ConfigError, Invalid

VERSIONS = {"evaluation": 1, "evaluation.baselines": 1}

RESULT_PACKAGES = ("lm-eval", "transformers", "tokenizers")
"""Packages whose version changes results of `evaluation`."""

BASELINES_PACKAGES = ("tokenizers",)
"""The same for `evaluation.baselines`."""

When = Literal["every", "last", "never"]
SUITES = ("heldout", "samples", "tasks")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldoutConfig:
    """Bits per byte on the held-out documents."""

    window: int | None = key(None, help="Tokens the model sees at once; by default its sequence length.")
    stride: int | None = key(
        None, help="Tokens by which the window moves over a long document; by default half the window."
    )
    documents: int | None = key(None, help="Documents per source, the first ones; by default all.")

    def __post_init__(self) -> None:
        for name, low in (("window", 2), ("stride", 1), ("documents", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise Invalid(name, f"expected at least {low}, got {value}; leave the key out for the default")
        if self.window is not None and self.stride is not None and self.stride > self.window:
            raise Invalid("stride", f"expected at most the window ({self.window}), got {self.stride}; lower it")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplesConfig:
    """Generated text."""

    prompts: tuple[str, ...] | None = key(
        None, help="Texts to continue; by default the beginnings of held-out documents."
    )
    prompt_bytes: int = key(
        100, help="Length of an automatic prompt; it ends before the word that crosses this length."
    )
    count: int = key(3, help="Automatic prompts per source, or samples per given prompt.")
    tokens: int = key(120, help="Most tokens generated per sample; an end-of-document token ends it earlier.")
    temperature: float = key(0.8, help="Sampling temperature; 0 always takes the most likely token.")
    top_k: int | None = key(None, help="Sample among this many most likely tokens.")
    top_p: float | None = key(0.95, help="Sample among the most likely tokens that together have this probability.")
    seed: int = key(1, help="Seed of the sampling.")

    def __post_init__(self) -> None:
        for name in ("prompt_bytes", "count", "tokens"):
            if getattr(self, name) < 1:
                raise Invalid(
                    name, f"expected at least 1, got {getattr(self, name)}; write `at: {{samples: never}}` for none"
                )
        if self.temperature < 0:
            raise Invalid("temperature", f"expected 0 or more, got {self.temperature}; 0 is greedy")
        if self.top_k is not None and self.top_k < 1:
            raise Invalid("top_k", f"expected at least 1, got {self.top_k}; leave it out for all tokens")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise Invalid("top_p", f"expected above 0 and at most 1, got {self.top_p}; leave it out for all tokens")
        if self.prompts is not None and (not self.prompts or any(not prompt.strip() for prompt in self.prompts)):
            raise Invalid(
                "prompts",
                "expected texts that are not blank, got none or a blank one; leave the key out for automatic ones",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """One lm-eval task. Its name is its key under `tasks`."""

    file: Path | None = key(
        None, kind="runtime", help="Task file (lm-eval YAML) on disk; its content is in the digest."
    )
    fewshot: int = key(0, help="Solved examples before each item.")
    limit: int | None = key(None, help="Items, the first ones; by default all.")
    metrics: tuple[str, ...] | None = key(None, help="Metrics to report; by default all that fit the task.")

    def __post_init__(self) -> None:
        if self.fewshot < 0:
            raise Invalid("fewshot", f"expected 0 or more, got {self.fewshot}; write 0 for none")
        if self.limit is not None and self.limit < 1:
            raise Invalid("limit", f"expected at least 1, got {self.limit}; leave it out for all items")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContinuationConfig:
    """The task `continuation`, made from the held-out documents: which of the endings is the true one?"""

    items: int = key(200, help="Most items per source.")
    choices: int = key(
        4, help="Endings per item; one is true, the others come from other documents of the same source."
    )
    context_bytes: int = key(300, help="Length of the passage, up to a word's end.")
    ending_bytes: int = key(120, help="Length of an ending, up to a word's end.")
    seed: int = key(1, help="Seed of the draw of wrong endings and of their order.")

    def __post_init__(self) -> None:
        for name, low in (("items", 1), ("choices", 2), ("context_bytes", 20), ("ending_bytes", 10)):
            if getattr(self, name) < low:
                raise Invalid(name, f"expected at least {low}, got {getattr(self, name)}; raise it")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AtConfig:
    """At which boundary steps each suite runs."""

    heldout: When = key("every", kind="runtime", help="Bits per byte: every boundary step, the last, or never.")
    samples: When = key("last", kind="runtime", help="Generated samples; `every` converts every boundary step.")
    tasks: When = key("last", kind="runtime", help="lm-eval tasks; `every` converts every boundary step.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How it is computed; recorded, not in the digest."""

    device: Literal["auto", "cpu", "cuda"] = key(
        "auto", kind="numerics", help="Where models run; auto takes a GPU if there is one."
    )
    threads: int = key(1, kind="numerics", help="CPU threads of one evaluation.")
    batch_tokens: int = key(16_384, kind="numerics", help="Tokens per forward pass, padding included.")

    def __post_init__(self) -> None:
        for name in ("threads", "batch_tokens"):
            if getattr(self, name) < 1:
                raise Invalid(name, f"expected at least 1, got {getattr(self, name)}; raise it")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What trained models are measured by."""

    heldout: HeldoutConfig = key(factory=HeldoutConfig, help="Bits per byte on the held-out documents.")
    samples: SamplesConfig = key(factory=SamplesConfig, help="Generated text.")
    tasks: dict[str, TaskConfig] = key(
        factory=lambda: {"continuation": TaskConfig()},
        help="lm-eval tasks by name; `continuation` is made here, others need `file` or a network.",
    )
    continuation: ContinuationConfig = key(factory=ContinuationConfig, help="The shipped offline multiple-choice task.")
    at: AtConfig = key(factory=AtConfig, help="At which steps each suite runs.")
    baselines: bool = key(True, kind="runtime", help="Whether xz and a token bigram are measured on the same text.")
    compute: ComputeConfig = key(factory=ComputeConfig, help="Device, threads and batch size.")

    def __post_init__(self) -> None:
        ours = self.tasks.get("continuation")
        if ours is not None and ours.file is not None:
            raise Invalid(
                "tasks.continuation.file", "expected no file, as this task is made here; give the task another name"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSection:
    """What one suite at one step reads; the sections of other suites are absent."""

    suite: Literal["heldout", "samples", "tasks"] = key(help="What is run.")
    step: int = key(help="The boundary step.")
    heldout: HeldoutConfig | None = key(None, neutral=None, help="Of suite heldout.")
    samples: SamplesConfig | None = key(None, neutral=None, help="Of suite samples.")
    tasks: dict[str, TaskConfig] | None = key(None, neutral=None, help="Of suite tasks.")
    continuation: ContinuationConfig | None = key(
        None, neutral=None, help="Of suite tasks, if `continuation` is among them."
    )
    files: dict[str, str] = key(
        factory=dict, neutral={}, help="`<task>/<file>` -> SHA-256 of every local file a task reads."
    )
    compute: ComputeConfig = key(factory=ComputeConfig, help="Device, threads and batch size.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaselinesSection:
    """What the baselines read."""

    documents: int | None = key(None, neutral=None, help="Held-out documents per source, as in evaluation.heldout.")
    tokens: int = key(100_000_000, help="Most training tokens per source that the bigram counts.")


def suites(config: EvaluationConfig, *, last: bool = True) -> list[str]:
    """Return the suites that run at a boundary step; `last` says whether it is the last one."""
    wanted = ("every", "last") if last else ("every",)
    names = [name for name in SUITES if getattr(config.at, name) in wanted]
    return [name for name in names if name != "tasks" or config.tasks]


def needs_conversion(suite: str) -> bool:
    """Say whether a suite reads the converted model; the others read the checkpoint itself."""
    return suite != "heldout"


def section(config: EvaluationConfig, suite: str, step: int) -> EvaluationSection:
    """Return what `suite` at `step` reads. Hashes local task files; raises `ConfigError` if one is missing."""
    if suite == "heldout":
        return EvaluationSection(suite="heldout", step=step, heldout=config.heldout, compute=config.compute)
    if suite == "samples":
        return EvaluationSection(suite="samples", step=step, samples=config.samples, compute=config.compute)
    assert suite == "tasks", suite
    return EvaluationSection(
        suite="tasks",
        step=step,
        tasks=config.tasks,
        continuation=config.continuation if "continuation" in config.tasks else None,
        files={
            f"{name}/{label}": _sha256(path)
            for name, task in sorted(config.tasks.items())
            if task.file is not None
            for label, path in task_files(task.file, name)
        },
        compute=config.compute,
    )


def baselines_section(config: EvaluationConfig) -> BaselinesSection:
    """Return what the baselines read."""
    return BaselinesSection(documents=config.heldout.documents)


# --- local task files ------------------------------------------------------------------------------------------------


class _TaskLoader(yaml.SafeLoader):
    """Reads lm-eval's YAML, whose `!function module.name` stays text."""


_TaskLoader.add_constructor("!function", lambda loader, node: ("function", str(node.value)))


def read_task(path: Path, name: str) -> dict[str, Any]:
    """Return a local task file as it is written; `!function a.b` becomes `("function", "a.b")`."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_TaskLoader)
    except FileNotFoundError:
        raise ConfigError(
            f"evaluation.tasks.{name}.file: expected an lm-eval task file, got {path}, which does not exist"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"evaluation.tasks.{name}.file: {path}: expected an lm-eval task in YAML, got {error}"
        ) from None
    if not isinstance(data, dict) or not ("task" in data or "include" in data):
        raise ConfigError(
            f"evaluation.tasks.{name}.file: {path}: expected a mapping with the key `task`, got something else"
        )
    return data


def task_files(path: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield `(label, path)` of a task file and the local files that it names: includes, data and function modules."""
    data = read_task(path, name)
    yield path.name, path
    if isinstance(include := data.get("include"), str):
        yield from task_files(path.parent / include, name)
    for split, file in data_files(data, path):
        if not file.is_file():
            raise ConfigError(f"evaluation.tasks.{name}.file: {path}: dataset_kwargs.data_files: no such file: {file}")
        yield f"{split}:{file.name}", file
    for module in sorted({value[1].split(".")[0] for value in _values(data) if isinstance(value, tuple)}):
        if (file := path.parent / f"{module}.py").is_file():
            yield file.name, file


def data_files(data: dict[str, Any], path: Path) -> Iterator[tuple[str, Path]]:
    """Yield `(split, file)` for the local data of a task; relative paths start at the task file."""
    files = (data.get("dataset_kwargs") or {}).get("data_files") or {}
    for split, names in (files if isinstance(files, dict) else {"train": files}).items():
        for file in names if isinstance(names, list) else [names]:
            if "://" not in str(file):
                yield str(split), path.parent / str(file)


def _values(data: Any) -> Iterator[Any]:
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, list):
        for item in data:
            yield from _values(item)
    else:
        yield data


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
