"""Hand-made inputs: a reader of made-up sequences, sections, and jobs."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modalities.models.llama_config import LlamaConfig
from modalities.pretraining.config import NumericsConfig, RuntimeConfig, SegmentSection

VOCABULARY = 97


@dataclasses.dataclass(frozen=True)
class MadeUp:
    """What the packing's reader returns."""

    tokens: Any
    loss_mask: Any
    documents: Any
    sources: Any


class MadeUpReader:
    """Sequence n is a function of n alone: a noisy arithmetic progression, with some targets that do not count."""

    source_names = ("even", "odd")

    def __init__(self, length: int) -> None:
        self.length = length
        self.read: list[tuple[int, int]] = []

    def batch(self, first: int, last: int) -> MadeUp:
        self.read.append((first, last))
        rows, masks = [], []
        for n in range(first, last):
            random = np.random.default_rng(n)
            steps = random.integers(1, 4, self.length + 1)
            rows.append((random.integers(VOCABULARY) + np.cumsum(steps)) % VOCABULARY)
            masks.append(random.random(self.length) > (0.5 if n % 3 == 0 else 0.1))
        documents = np.broadcast_to(np.arange(self.length) // 7, (last - first, self.length))
        return MadeUp(np.stack(rows).astype(np.uint16), np.stack(masks), documents.copy(), np.arange(first, last) % 2)


@pytest.fixture
def make_reader() -> Callable[[int], MadeUpReader]:
    return MadeUpReader


@pytest.fixture
def section() -> SegmentSection:
    """A tiny segment of eight steps."""
    return SegmentSection(
        model=LlamaConfig(dim=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn_dim=64),
        start_step=0,
        end_step=8,
        sequence_length=24,
        global_batch_sequences=8,
        learning_rate=1e-2,
        warmup_steps=3,
        numerics=NumericsConfig(micro_batch=4),
        runtime=RuntimeConfig(checkpoint_every_seconds=None, tensorboard=False),
    )


@pytest.fixture
def run_segment(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run a section in this process, in a folder below tmp_path; a second call with the same name resumes."""
    from modalities.pretraining.rank import Job, run_rank

    def run(name: str, section: SegmentSection, **inputs: Any) -> dict[str, Any]:
        folder = tmp_path / name
        (folder / "state").mkdir(parents=True, exist_ok=True)
        job = Job(section=section, inputs=inputs, vocab_size=VOCABULARY, folder=folder, state=folder / "state")
        reader = MadeUpReader(section.sequence_length)
        return run_rank(job, report=lambda step, loss: None, reader=reader)

    return run
