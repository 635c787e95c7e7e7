"""One rank of a training job, from a description that fits into JSON to `trainer.train`."""

import dataclasses
import json
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from modalities import config as configs
from modalities import manifest
from modalities.checkpoint import checkpoint_folder
from modalities.errors import HungError, InputError, OutOfMemoryError, StoreError
from modalities.manifest import write_json
from modalities.models import architectures
from modalities.models.llama_config import LlamaConfig
from modalities.pretraining.config import SegmentSection
from modalities.pretraining.data import RandomReader, Reader, Steps
from modalities.pretraining.metrics import peak_flops
from modalities.pretraining.optimizer import Optimizer
from modalities.pretraining.parallel import Placement, connect, replicate
from modalities.pretraining.stopping import StopRequest
from modalities.pretraining.trainer import Setting, train
from modalities.pretraining.validation import HeldOut, read_heldout
from modalities.work import Upstream

CPU_MICRO_BATCH_TOKENS, GPU_MICRO_BATCH_TOKENS = 2048, 16384
CPU_PIECE_BYTES, GPU_PIECE_BYTES = 8 << 20, 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What all ranks are told."""

    section: SegmentSection
    inputs: Mapping[str, Upstream]
    vocab_size: int
    folder: Path
    state: Path
    made_up: bool = False
    """For benchmarks: random tokens instead of packed ones, and no checkpoint at the end."""

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON data; upstream folders are read again on the other side."""
        return {
            "section": configs.plain(self.section),
            "inputs": {
                role: {"folder": str(up.folder), "units": [str(unit.folder) for unit in up.units]}
                for role, up in self.inputs.items()
            },
            "vocab_size": self.vocab_size,
            "folder": str(self.folder),
            "state": str(self.state),
            "made_up": self.made_up,
        }


def read_job(path: Path) -> Job:
    """Read a description that `Job.to_json` made."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return Job(
        section=configs.build(SegmentSection, data["section"]),
        inputs={role: _upstream(up) for role, up in data["inputs"].items()},
        vocab_size=data["vocab_size"],
        folder=Path(data["folder"]),
        state=Path(data["state"]),
        made_up=data["made_up"],
    )


def _upstream(data: Mapping[str, Any]) -> Upstream:
    def one(folder: str) -> Upstream:
        return Upstream(folder=Path(folder), manifest=manifest.read(Path(folder)))

    return dataclasses.replace(one(data["folder"]), units=tuple(one(unit) for unit in data["units"]))


def run_rank(job: Job, *, report: Callable[[int, float | None], None], reader: Reader | None = None) -> dict[str, Any]:
    """Train one rank of a job to its end; return the summary for `Result.info` and `Result.numerics`."""
    section = job.section
    numerics, runtime = section.numerics, section.runtime
    placement = connect(numerics, timeout_seconds=runtime.collective_timeout_seconds)
    _set_determinism(section)
    model = dataclasses.replace(section.model, vocab_size=section.model.vocab_size or job.vocab_size)
    replica = replicate(model, numerics, placement, seed=section.init_seed)
    steps = Steps(
        reader if reader is not None else _reader(job, model),
        sequences=section.global_batch_sequences,
        data_rank=placement.data_rank,
        data_ranks=placement.data_ranks,
        document_mask=section.document_mask,
        last_step=section.end_step,
    )
    counts = architectures.counts_module(model)
    peak, peak_source = peak_flops(placement.device, threads=numerics.threads_per_rank)
    record = numerics_record(section, placement)
    with StopRequest(file=job.state / "stop", after_seconds=runtime.stop_after_seconds) as stop:
        setting = Setting(
            section=section,
            model_config=model,
            replica=replica,
            optimizer=Optimizer(replica.model, section.optimizer),
            steps=steps,
            heldout=_heldout(job),
            numerics=record,
            flops_per_token=counts.flops_per_token(model, sequence_length=section.sequence_length),
            peak_flops=peak * numerics.world_size,
            micro_batch=micro_batch(section, placement),
            piece_tokens=piece_tokens(numerics.loss_chunk_tokens, model, placement),
            state=job.state,
            boundary=None if job.made_up else job.folder / "checkpoint",
            previous=checkpoint_folder(job.inputs["previous"].folder) if "previous" in job.inputs else None,
            stop=stop,
            report=report,
            save_group=dist.new_group(backend="gloo") if dist.is_initialized() and runtime.asynchronous else None,
        )
        try:
            summary = train(setting)
        except RuntimeError as error:
            raise classified(error, section) from error
    info = {"model": configs.plain(model), "parameters": counts.parameters(model), "peak_flops": peak_source, **summary}
    return {"info": info, "numerics": record}


def classified(error: RuntimeError, section: SegmentSection) -> Exception:
    """Return the error as the class that says what to do, where torch's text tells; else as it is."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: not enough memory" in text:
        return OutOfMemoryError(
            f"pretraining: out of memory; lower pretraining.numerics.micro_batch or set activation_checkpointing: full ({text})"
        )
    if "timed out" in text.lower():
        return HungError(
            f"pretraining: a collective made no progress in {section.runtime.collective_timeout_seconds:g} seconds; "
            f"see whether a rank is stuck or dead ({text})"
        )
    return error


def _reader(job: Job, model: LlamaConfig) -> Reader:
    if not job.made_up:
        return open_reader(job.inputs, job.section)
    assert model.vocab_size is not None
    return RandomReader(length=job.section.sequence_length, vocab_size=model.vocab_size)


def open_reader(inputs: Mapping[str, Upstream], section: SegmentSection) -> Reader:
    """Open the packing's order of sequences over the token shards of all sources.

    Raises `ConfigError` where the whole training reads a source more often than `max_epochs`: packing checked the budget of the
    run that made it, which a longer training reuses.
    """
    from modalities.packing.index import check_budget
    from modalities.packing.reader import SequenceReader

    shards = {role.partition(":")[2]: up for role, up in inputs.items() if role.startswith("tokenization:")}
    opened = SequenceReader.open(
        inputs["packing"], shards, data_seed=section.data_seed, cross_documents=not section.document_mask
    )
    if opened.index.sequence_length != section.sequence_length:
        raise StoreError(
            f"{inputs['packing'].folder}: expected sequences of {section.sequence_length} tokens, got "
            f"{opened.index.sequence_length}; run packing with the same packing.sequence_length"
        )
    steps = max(section.end_step, section.planned_steps or 0)
    check_budget(opened.index, sequences=steps * section.global_batch_sequences, max_epochs=section.max_epochs)
    return opened


def _set_determinism(section: SegmentSection) -> None:
    if section.numerics.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(section.numerics.deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def micro_batch(section: SegmentSection, placement: Placement) -> int:
    """Return sequences per forward pass: as configured, else the largest divisor of a rank's share that stays small."""
    if section.numerics.micro_batch is not None:
        return section.numerics.micro_batch
    share = section.global_batch_sequences // placement.data_ranks
    tokens = CPU_MICRO_BATCH_TOKENS if placement.device.type == "cpu" else GPU_MICRO_BATCH_TOKENS
    fitting = [n for n in range(1, share + 1) if share % n == 0 and n * section.sequence_length <= tokens]
    return max(fitting, default=1)


def piece_tokens(configured: int | None, model: LlamaConfig, placement: Placement) -> int:
    """Return how many tokens have logits at one time."""
    if configured is not None:
        return configured
    size = CPU_PIECE_BYTES if placement.device.type == "cpu" else GPU_PIECE_BYTES
    assert model.vocab_size is not None
    return max(64, size // (4 * model.vocab_size))


def _heldout(job: Job) -> HeldOut | None:
    runtime = job.section.runtime
    if "validation" not in job.inputs or runtime.validation_documents == 0:
        return None
    if "heldout" not in job.inputs:
        raise InputError("pretraining: expected the input heldout beside validation, got none; add it to the plan node")
    return read_heldout(
        job.inputs["validation"].folder / "tokens",
        job.inputs["heldout"].folder / "documents.parquet",
        length=job.section.sequence_length,
        max_documents=runtime.validation_documents,
        max_tokens=runtime.validation_tokens,
    )


def numerics_record(section: SegmentSection, placement: Placement) -> dict[str, Any]:
    """Return what fixes the bits: the numerics keys with every `auto` resolved, device and versions."""
    device = placement.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        **configs.select(section.numerics, "numerics"),
        "strategy": placement.strategy,
        "micro_batch": micro_batch(section, placement),
        "precision": str(placement.dtype).removeprefix("torch."),
        "device": f"{device.type} {name}",
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def write_error(job_state: Path, error: BaseException, *, rank: int) -> None:
    """Leave this rank's error for the process that started the ranks, with the time it happened."""
    import time
    import traceback

    facts = {
        "rank": rank,
        "time": time.time(),
        "class": type(error).__name__,
        "message": str(error),
        "traceback": traceback.format_exc(),
    }
    write_json(job_state / f"error-{rank}.json", facts)
