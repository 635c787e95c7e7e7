"""The plan node `pretraining.benchmarking`: how fast one numerics setting trains here, and in how much memory.

The ranks train on made-up tokens in processes of their own, so that peak memory is theirs alone and running out of it ends
them and not the job: that is a result. `steps.jsonl` holds the measured steps. Loads torch only in those processes.
"""

import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modalities.errors import OutOfMemoryError
from modalities.manifest import write_text
from modalities.pretraining.benchmarking_config import BenchmarkingSection
from modalities.pretraining.config import RuntimeConfig, SegmentSection
from modalities.pretraining.stage import train_in_ranks, vocabulary
from modalities.work import Result, Work, digest_of

_KILLED = ("SIGKILL", "exitcode  : -9", "exitcode: -9")
"""How torchrun says that the system ended a rank, which it does for memory."""


def run(work: Work[BenchmarkingSection]) -> Result:
    """Measure one setting. The content covers the figures: measured again, it is another result."""
    from modalities.pretraining.rank import Job

    section = work.section
    state = work.folder / "state"
    state.mkdir()
    training = _training(section)
    job = Job(
        section=training,
        inputs={},
        vocab_size=vocabulary(work.inputs["tokenizer"]),
        folder=work.folder,
        state=state,
        made_up=True,
    )
    figures: dict[str, Any] = {"outcome": "measured"}
    numerics: dict[str, Any] = {}
    try:
        summary = train_in_ranks(job, report=_reporter(work))
    except (OutOfMemoryError, RuntimeError) as error:
        if not (isinstance(error, OutOfMemoryError) or any(sign in str(error) for sign in _KILLED)):
            raise
        figures = {"outcome": "out of memory", "message": str(error).splitlines()[0][:500]}
    else:
        lines = _measured(state / "metrics.jsonl", after=section.warmup_steps)
        write_text(work.folder / "steps.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        figures |= {
            "tokens_per_second": statistics.median(line["tokens_per_second"] for line in lines),
            "mfu": statistics.median(line["mfu"] for line in lines),
            "memory_bytes": int(summary["info"]["memory_bytes"]),
            "parameters": summary["info"]["parameters"],
            "peak_flops": summary["info"]["peak_flops"],
        }
        numerics = summary["numerics"]
    shutil.rmtree(state)
    info = {"name": section.name, "device": section.device, "setting": section.setting, **figures}
    return Result(content=digest_of(info), counts={"steps": section.steps}, info=info, numerics=numerics)


def _reporter(work: Work[BenchmarkingSection]) -> Callable[[int, float | None], None]:
    steps = work.section.warmup_steps + work.section.steps

    def report(step: int, loss: float | None) -> None:
        work.progress.update(step, steps, "steps", loss=loss)

    return report


def _training(section: BenchmarkingSection) -> SegmentSection:
    return SegmentSection(
        model=section.model,
        start_step=0,
        end_step=section.warmup_steps + section.steps,
        sequence_length=section.sequence_length,
        global_batch_sequences=section.global_batch_sequences,
        learning_rate=1e-4,
        warmup_steps=1,
        optimizer=section.optimizer,
        document_mask=section.document_mask,
        nonfinite="skip",
        numerics=section.numerics(),
        runtime=RuntimeConfig(
            checkpoint_every_seconds=None, asynchronous=False, tensorboard=False, validation_documents=0
        ),
    )


def _measured(path: Path, *, after: int) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["step"] > after and "tokens_per_second" in line]
