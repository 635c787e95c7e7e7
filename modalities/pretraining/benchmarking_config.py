"""The section `benchmarking:`, and what one setting of it depends on. Torch-free.

A throughput study tries numerics settings that give the same model, so they cannot be arms of an ablation: numerics keys are in
no digest. Here they are in the digest, and so is the device, because they are what is measured.
"""

import dataclasses
import platform
import re
from pathlib import Path
from typing import Any

from modalities import config as strict
from modalities.config import Tree, key
from modalities.errors import Invalid
from modalities.models import architectures
from modalities.models.llama_config import LlamaConfig
from modalities.pretraining import config as pretraining
from modalities.pretraining.config import NumericsConfig, OptimizerConfig, PretrainingConfig

NODE = "pretraining.benchmarking"
_GPUS = Path("/proc/driver/nvidia/gpus")
_CPUS = Path("/proc/cpuinfo")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkingConfig:
    """The section `benchmarking:` as written."""

    settings: dict[str, Tree] = key(
        help="Name -> keys of pretraining.numerics that differ from it, such as {micro_batch: 8, compile: blocks}."
    )
    steps: int = key(10, help="Steps that are measured; the median counts.")
    warmup_steps: int = key(3, help="Steps before, in which memory is claimed and code compiled.")
    device: str | None = key(
        None, help="Name of the device that is measured; left out, that of the machine on which the plan is made."
    )

    def __post_init__(self) -> None:
        if not self.settings:
            raise Invalid("settings", "expected at least one setting, got none; write {base: {}}, say")
        for name in self.settings:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=,+-]*", name):
                raise Invalid("settings", f"expected names of letters, digits and '._=,+-', got {name!r}; rename it")
        if self.steps < 2:
            raise Invalid("steps", f"expected 2 or more, got {self.steps}; raise it")
        if self.warmup_steps < 1:
            raise Invalid(
                "warmup_steps", f"expected 1 or more, got {self.warmup_steps}; the first step is never typical"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkingSection:
    """What one measurement depends on: here numerics keys and the device are result keys."""

    name: str = key(kind="runtime", help="What people call the setting.")
    model: LlamaConfig = key(help="The model, sizes filled in.")
    sequence_length: int = key(help="Tokens per sequence.")
    global_batch_sequences: int = key(help="Sequences per step over all ranks.")
    optimizer: OptimizerConfig = key(factory=OptimizerConfig, help="The optimizer.")
    document_mask: bool = key(False, help="Attend only within a document.")
    steps: int = key(help="Steps that are measured.")
    warmup_steps: int = key(help="Steps before.")
    device: str = key(help="Name of the device.")
    setting: dict[str, Any] = key(help="All keys of pretraining.numerics.")

    def numerics(self) -> NumericsConfig:
        """Return the setting as the trainer takes it."""
        return strict.build(NumericsConfig, self.setting)


def sections(
    config: BenchmarkingConfig, training: PretrainingConfig, sequence_length: int
) -> list[BenchmarkingSection]:
    """Return one section per setting."""
    model = training.model.resolved()
    model = dataclasses.replace(model, source_digest=architectures.source_digest(model))
    device = config.device if config.device is not None else machine()
    return [
        BenchmarkingSection(
            name=name,
            model=model,
            sequence_length=sequence_length,
            global_batch_sequences=pretraining.batch_tokens(training, sequence_length) // sequence_length,
            optimizer=training.optimizer,
            document_mask=training.document_mask,
            steps=config.steps,
            warmup_steps=config.warmup_steps,
            device=device,
            setting=strict.plain(numerics),
        )
        for name, numerics in _numerics(config, training).items()
    ]


def _numerics(config: BenchmarkingConfig, training: PretrainingConfig) -> dict[str, NumericsConfig]:
    base = strict.from_python(strict.plain(training.numerics), "pretraining.numerics")
    return {
        name: strict.load(NumericsConfig, strict.merge(base, _mapping(name, tree)), f"benchmarking.settings.{name}")
        for name, tree in config.settings.items()
    }


def _mapping(name: str, tree: Tree) -> Tree:
    if not isinstance(tree.value, dict):
        raise Invalid(
            f"settings.{name}", f"expected keys of pretraining.numerics, got {tree.raw!r}; write {{}} for none"
        )
    return tree


def check(
    config: BenchmarkingConfig, training: PretrainingConfig, *, sequence_length: int, vocab_size: int | None
) -> None:
    """Raise `Invalid` for settings that cannot be trained with, or that are the same."""
    seen: dict[str, str] = {}
    for name, numerics in _numerics(config, training).items():
        try:
            changed = dataclasses.replace(training, numerics=numerics)
            pretraining.check(changed, sequence_length=sequence_length, vocab_size=vocab_size)
        except Invalid as error:
            inside = error.key.startswith("numerics.")
            place = f"settings.{name}{error.key.removeprefix('numerics') if inside else ''}"
            raise Invalid(place, error.message) from None
        twin = seen.setdefault(repr(numerics), name)
        if twin != name:
            raise Invalid(f"settings.{name}", f"expected settings that differ, got that of {twin!r} again; remove one")


def machine() -> str:
    """Return the name of this machine's GPUs, else of its CPU, without loading torch."""
    names = []
    for path in sorted(_GPUS.glob("*/information")):
        found = re.search(r"^Model:\s*(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        names.append(found[1].strip() if found is not None else "GPU")
    if names:
        return " + ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    if _CPUS.exists():
        text = _CPUS.read_text(encoding="utf-8", errors="replace")
        found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
        if found is not None:
            count = len(re.findall(r"^processor\b", text, re.MULTILINE))
            return f"{count} x {found[1].strip()}"
    return platform.processor() or platform.machine()
