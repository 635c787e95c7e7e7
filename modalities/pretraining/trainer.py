"""The training loop, without any parallelism in it: what differs between one rank and many is inside `Replica`.

A step: read the batch, agree with the other ranks (tokens that count, stop, save), forward and backward by micro-batch, clip,
update. The loss is the sum over tokens divided by the global number of tokens that count; the learning rate is a function of the
step. Nothing waits for a device within a step but the check that the gradient norm is finite.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from modalities import checkpoint
from modalities.errors import DivergedError, InterruptedRunError
from modalities.manifest import write_json
from modalities.models.llama_config import LlamaConfig
from modalities.pretraining.config import SegmentSection
from modalities.pretraining.data import Batch, Steps
from modalities.pretraining.loss import IGNORED, TokenLoss
from modalities.pretraining.metrics import Clock, MetricsFile, memory_bytes
from modalities.pretraining.optimizer import Optimizer
from modalities.pretraining.parallel import Replica
from modalities.pretraining.schedule import rate
from modalities.pretraining.stopping import StopRequest
from modalities.pretraining.validation import HeldOut, validate

MAX_SKIPS = 100
"""Skipped updates in a row after which a run has diverged."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Everything a rank trains with."""

    section: SegmentSection
    model_config: LlamaConfig
    replica: Replica
    optimizer: Optimizer
    steps: Steps
    heldout: HeldOut | None
    numerics: dict[str, Any]
    flops_per_token: int
    peak_flops: float
    """Of all ranks together."""
    micro_batch: int
    piece_tokens: int
    state: Path
    """Where resume checkpoints, metrics and diagnostics live."""
    boundary: Path | None
    """Where the last checkpoint goes, if it is wanted."""
    previous: Path | None
    """Checkpoint to begin from, if no resume checkpoint is there."""
    stop: StopRequest
    report: Callable[[int, float | None], None]
    """Told (steps done, loss) on rank 0."""
    save_group: Any = None
    """Gloo group for checkpoints in the background; None where there is one rank."""


@dataclasses.dataclass(slots=True)
class State:
    """What changes from step to step, beside tensors."""

    step: int = 0
    tokens_seen: int = 0
    skips: int = 0
    loss: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What one step found."""

    loss: Tensor
    """Sum over this rank's tokens, in nats; on the device."""
    by_source: Tensor
    """[sources, 2]: sums of nats and of tokens that count, of this rank; on the device."""
    norm: float
    tokens: int
    """Tokens that count, over all ranks."""
    skipped: bool


def train(setting: Setting) -> dict[str, Any]:
    """Train to the end of the segment and return what rank 0 knows of it; raise `InterruptedRunError` if told to stop."""
    section, runtime = setting.section, setting.section.runtime
    state = _begin(setting)
    metrics = MetricsFile(setting.state, step=state.step, tensorboard=runtime.tensorboard) if _first() else None
    clock = Clock(
        tokens_per_step=section.tokens_per_step,
        flops_per_token=setting.flops_per_token,
        peak=setting.peak_flops,
    )
    saver = _Saver(setting, step=state.step)
    started_at = state.step
    validation: dict[str, Any] = {}
    try:
        while state.step < section.end_step:
            begin = time.perf_counter()
            batch = setting.steps.batch(state.step)
            waited = time.perf_counter() - begin
            tokens, stop, save_due = _agree(setting, batch, saver, state.step)
            if stop:
                raise _interrupted(setting, state, saver)
            if save_due:
                saver.save(state)
            result = _step(setting, state, batch, tokens)
            clock.step(data_seconds=waited)
            _advance(setting, state, result)
            if state.step % runtime.log_every == 0 or state.step == section.end_step:
                _log(setting, state, result, clock, metrics)
            if state.step == section.end_step or _due(state.step, runtime.validate_every):
                validation = _validate(setting, state, clock, metrics)
        saver.finish()
        if setting.boundary is not None:
            checkpoint.save(setting.boundary, tensors(setting), _progress(setting, state))
    finally:
        saver.abandon()
        setting.steps.close()
        if metrics is not None:
            metrics.close()
    return _summary(setting, state, clock, validation, started_at)


def tensors(setting: Setting) -> dict[str, Tensor]:
    """Return the live tensors of a checkpoint by name, for saving or for loading in place."""
    model = {checkpoint.MODEL + name: p.detach() for name, p in setting.replica.model.named_parameters()}
    moments = {checkpoint.OPTIMIZER + name: t for name, t in setting.optimizer.tensors().items()}
    return {**model, **moments, "random": torch.get_rng_state()}


def _begin(setting: Setting) -> State:
    """Load the newest resume checkpoint, else the previous segment's last one, else start at step 0."""
    torch.manual_seed(setting.section.init_seed)
    source = checkpoint.newest(setting.state / "checkpoints") or setting.previous
    if source is None:
        assert setting.section.start_step == 0, "a later segment begins from the one before"
        return State()
    found = tensors(setting)
    progress = checkpoint.load(source, found)
    torch.set_rng_state(found["random"])
    setting.optimizer.set_updates(progress.updates)
    return State(step=progress.step, tokens_seen=progress.tokens_seen)


def _agree(setting: Setting, batch: Batch, saver: "_Saver", step: int) -> tuple[int, bool, bool]:
    """Sum over ranks: tokens that count in this step, whether anyone must stop, whether a checkpoint is due."""
    counts = float((batch.targets != IGNORED).sum())
    values = torch.tensor([counts, float(setting.stop.wanted()), float(saver.due(step))], dtype=torch.float64)
    setting.replica.sum_over_data(values)
    return int(values[0]), bool(values[1] > 0), bool(values[2] > 0)


def _step(setting: Setting, state: State, batch: Batch, tokens: int) -> StepResult:
    section, replica = setting.section, setting.replica
    device = replica.placement.device
    total = torch.zeros((), dtype=torch.float32, device=device)
    by_source = torch.zeros(len(setting.steps.source_names), 2, dtype=torch.float32, device=device)
    pieces = list(batch.micro_batches(setting.micro_batch, device))
    for i, micro in enumerate(pieces):
        loss = TokenLoss(
            micro.targets,
            scale=1.0 / max(1, tokens),
            method=replica.loss_method,
            piece_tokens=setting.piece_tokens,
            z_loss=section.z_loss,
        )
        with replica.accumulating(last=i == len(pieces) - 1):
            replica.forward(micro.tokens, documents=micro.documents, loss=loss).backward()
        assert loss.losses is not None
        losses = loss.losses.view(micro.targets.shape)
        total += losses.sum()
        by_source.index_add_(0, micro.sources, torch.stack((losses.sum(1), (micro.targets != IGNORED).sum(1)), dim=1))
    norm = float(replica.clip(section.clip))
    skipped = not math.isfinite(norm)
    if skipped:
        _not_finite(setting, state, norm)
        setting.optimizer.zero_grad()
    else:
        setting.optimizer.step(rate(section, state.step))
    return StepResult(loss=total, by_source=by_source, norm=norm, tokens=tokens, skipped=skipped)


def _not_finite(setting: Setting, state: State, norm: float) -> None:
    """Raise `DivergedError` unless the policy is to skip; the norm is global, so all ranks come to the same end."""
    if setting.section.nonfinite == "skip" and state.skips < MAX_SKIPS:
        return
    names = [
        name
        for name, p in setting.replica.model.named_parameters()
        if p.grad is not None and not bool(torch.isfinite(_local(p.grad)).all())
    ]
    path = setting.state / "diverged.json"
    if _first():
        first = state.step * setting.section.global_batch_sequences
        last = first + setting.section.global_batch_sequences
        facts = {
            "step": state.step,
            "norm": str(norm),
            "sequences": [first, last],
            "gradients": names,
            "skips": state.skips,
        }
        write_json(path, facts)
    raise DivergedError(
        f"pretraining: expected a finite gradient norm at step {state.step}, got {norm}; see {path.name} in {path.parent}; lower "
        "pretraining.learning_rate or set pretraining.nonfinite: skip"
    )


def _local(tensor: Tensor) -> Tensor:
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def _advance(setting: Setting, state: State, result: StepResult) -> None:
    state.step += 1
    state.tokens_seen += result.tokens
    state.skips = state.skips + 1 if result.skipped else 0


def _log(setting: Setting, state: State, result: StepResult, clock: Clock, metrics: MetricsFile | None) -> None:
    sums = torch.cat((result.loss.view(1).double().cpu(), result.by_source.double().cpu().flatten()))
    setting.replica.sum_over_data(sums)
    state.loss = float(sums[0]) / max(1, result.tokens)
    if metrics is None:
        return
    sources = sums[1:].view(-1, 2)
    line: dict[str, Any] = {
        "step": state.step,
        "tokens": state.tokens_seen,
        "loss": _finite(state.loss),
        "loss_by_source": {
            name: _finite(float(row[0] / row[1]))
            for name, row in zip(setting.steps.source_names, sources, strict=True)
            if row[1] > 0
        },
        "grad_norm": _finite(result.norm),
        "learning_rate": rate(setting.section, state.step - 1),
        **clock.lap(),
        "memory_bytes": memory_bytes(setting.replica.placement.device),
    }
    metrics.write({**line, "skipped": True} if result.skipped else line)
    setting.report(state.step, state.loss)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _validate(setting: Setting, state: State, clock: Clock, metrics: MetricsFile | None) -> dict[str, Any]:
    if setting.heldout is None:
        return {}
    begin = time.perf_counter()
    figures = validate(
        setting.replica, setting.heldout, micro_batch=setting.micro_batch, piece_tokens=setting.piece_tokens
    )
    if metrics is not None:
        metrics.write({"step": state.step, "tokens": state.tokens_seen, "validation": figures})
    clock.pause(time.perf_counter() - begin)
    return figures


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def _interrupted(setting: Setting, state: State, saver: "_Saver") -> InterruptedRunError:
    saver.save(state)
    saver.finish()
    return InterruptedRunError(
        f"pretraining: told to stop at step {state.step} of {setting.section.end_step}; saved, start it again to go on"
    )


def _progress(setting: Setting, state: State) -> checkpoint.Progress:
    return checkpoint.Progress(
        step=state.step,
        tokens_seen=state.tokens_seen,
        updates=setting.optimizer.updates(),
        model=setting.model_config,
        numerics=setting.numerics,
    )


def _first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


class _Saver:
    """Resume checkpoints between boundaries: when they are due, and that only the last few stay."""

    def __init__(self, setting: Setting, *, step: int) -> None:
        self._setting, self._runtime = setting, setting.section.runtime
        self._folder = setting.state / "checkpoints"
        self._last_time = time.monotonic()
        self._last_step = step
        self._running: checkpoint.Saving | None = None

    def due(self, step: int) -> bool:
        """Return whether this rank wants a checkpoint before `step`; the first rank's clock decides for all."""
        if self._running is not None and self._running.future.done():
            self.finish()
        by_steps, seconds = self._runtime.checkpoint_every_steps, self._runtime.checkpoint_every_seconds
        late = seconds is not None and _first() and time.monotonic() - self._last_time > seconds
        return late or (by_steps is not None and step - self._last_step >= by_steps)

    def save(self, state: State) -> None:
        """Save the state before the next step. All ranks call it at the same step."""
        self.finish()
        self._last_step, self._last_time = state.step, time.monotonic()
        setting = self._setting
        folder = self._folder / f"{state.step:012d}"
        if folder.exists():
            return
        found, progress = tensors(setting), _progress(setting, state)
        if self._runtime.asynchronous:
            self._running = checkpoint.save_in_background(folder, found, progress, group=setting.save_group)
        else:
            checkpoint.save(folder, found, progress)
            self._prune()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, if one is."""
        if self._running is not None:
            self._running.finish()
            self._running = None
            self._prune()

    def abandon(self) -> None:
        """Complete what is being written, where that needs no other rank."""
        if not dist.is_initialized():
            self.finish()

    def _prune(self) -> None:
        if _first():
            checkpoint.prune(self._folder, keep=self._runtime.keep_checkpoints)


def _summary(
    setting: Setting, state: State, clock: Clock, validation: dict[str, Any], started_at: int
) -> dict[str, Any]:
    speed = (
        clock.total_steps * setting.section.tokens_per_step / clock.total_seconds if clock.total_seconds > 0 else 0.0
    )
    return {
        "step": state.step,
        "tokens_seen": state.tokens_seen,
        "final_loss": state.loss,
        "validation": validation,
        "tokens_per_second": speed,
        "mfu": speed * setting.flops_per_token / setting.peak_flops,
        "resumed_at": started_at,
        "memory_bytes": memory_bytes(setting.replica.placement.device),
    }
