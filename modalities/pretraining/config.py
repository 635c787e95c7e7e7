"""The section `pretraining:`, and the chain of segments that it stands for. Torch-free.

A run is trained segment by segment, from boundary to boundary; boundaries are the evaluation steps, the step at which a
warmup-stable-decay schedule starts to decay, and the end. A `SegmentSection` holds only what its steps read: the stable part of
a WSD schedule knows no end, so a longer budget and every branch share it; a cosine knows its horizon, so they do not.
"""

import dataclasses
import itertools
import math
from typing import Any, Literal

from modalities.config import key
from modalities.errors import ConfigError, Invalid
from modalities.models import architectures
from modalities.models.llama_config import PRESETS, LlamaConfig, ModelConfig

VERSIONS = {"pretraining": 2, "pretraining.benchmarking": 1}

DecayShape = Literal["linear", "cosine", "minus_sqrt"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """How the learning rate moves."""

    name: Literal["cosine", "linear", "wsd", "constant"] = key(
        "cosine", help="Shape after the warm-up; wsd: warmup-stable-decay."
    )
    warmup_steps: int = key(100, help="Steps of linear warm-up from 0.")
    decay_steps: int | None = key(None, help="wsd: steps of the decay at the end.")
    decay_share: float | None = key(None, help="wsd: share of all steps that decay, if decay_steps is left out; 0.2.")
    decay_shape: DecayShape = key("linear", help="wsd: shape of the decay; minus_sqrt: 1 - sqrt(progress).")
    min_ratio: float = key(0.1, help="Last learning rate as a share of the peak.")

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise Invalid("warmup_steps", f"expected 0 or more, got {self.warmup_steps}")
        if not 0 <= self.min_ratio <= 1:
            raise Invalid("min_ratio", f"expected a number between 0 and 1, got {self.min_ratio}")
        if self.decay_steps is not None and self.decay_steps < 1:
            raise Invalid(
                "decay_steps", f"expected 1 or more, got {self.decay_steps}; for no decay choose name: constant"
            )
        if self.decay_share is not None and not 0 < self.decay_share <= 1:
            raise Invalid("decay_share", f"expected a number above 0 and up to 1, got {self.decay_share}")
        if self.decay_steps is not None and self.decay_share is not None:
            raise Invalid("decay_share", "expected decay_steps or decay_share, got both; leave one out")
        if self.name != "wsd" and (self.decay_steps is not None or self.decay_share is not None):
            name = "decay_steps" if self.decay_steps is not None else "decay_share"
            raise Invalid(name, f"expected it only with name: wsd, got name: {self.name}; leave it out")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """AdamW for all parameters, or Muon for the hidden matrices and AdamW for the rest."""

    name: Literal["adamw", "muon"] = key("adamw", help="adamw, or muon for hidden matrices and adamw for the rest.")
    betas: tuple[float, ...] = key((0.9, 0.95), help="AdamW's decay rates of first and second moment.")
    eps: float = key(1e-8, help="AdamW's epsilon.")
    weight_decay: float = key(0.1, help="Decoupled weight decay of matrices; vectors have none.")
    muon_momentum: float = key(0.95, help="Muon's momentum.", neutral=0.95)
    muon_rate_ratio: float = key(
        1.0, help="Muon's learning rate over `learning_rate`, at AdamW-like update sizes.", neutral=1.0
    )

    def __post_init__(self) -> None:
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise Invalid("betas", f"expected two numbers from 0 to below 1, got {list(self.betas)}")
        for name in ("eps", "muon_rate_ratio"):
            if not getattr(self, name) > 0:
                raise Invalid(name, f"expected a number above 0, got {getattr(self, name)}")
        if not self.weight_decay >= 0:
            raise Invalid("weight_decay", f"expected 0 or more, got {self.weight_decay}")
        if not 0 <= self.muon_momentum < 1:
            raise Invalid("muon_momentum", f"expected a number from 0 to below 1, got {self.muon_momentum}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LayoutConfig:
    """How ranks share the work. The product of the degrees is the world size; data parallelism takes what the others leave."""

    strategy: Literal["auto", "ddp", "fsdp"] = key(
        "auto", help="auto: ddp on CPU, fsdp (FSDP2) on GPU.", kind="numerics"
    )
    replicate: int = key(
        1, help="Copies of the sharded model (HSDP); 1 shards over all data-parallel ranks.", kind="numerics"
    )
    tensor: int = key(1, help="Degree of tensor and sequence parallelism.", kind="numerics")
    reshard_after_forward: bool = key(
        True, help="fsdp: free a block's parameters between forward and backward.", kind="numerics"
    )
    cpu_offload: bool = key(False, help="fsdp: keep parameters and optimizer on the CPU.", kind="numerics")

    def __post_init__(self) -> None:
        for name in ("replicate", "tensor"):
            if getattr(self, name) < 1:
                raise Invalid(name, f"expected 1 or more, got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NumericsConfig:
    """What changes bits but not meaning. Recorded with every checkpoint."""

    world_size: int = key(1, help="Number of ranks.", kind="numerics")
    layout: LayoutConfig = key(factory=LayoutConfig, help="How ranks share the work.", kind="numerics")
    micro_batch: int | None = key(
        None, help="Sequences per forward pass and rank; left out, what keeps logits small.", kind="numerics"
    )
    threads_per_rank: int = key(1, help="CPU threads of each rank.", kind="numerics")
    device: Literal["auto", "cpu", "cuda"] = key("auto", help="auto: cuda if there is one.", kind="numerics")
    precision: Literal["auto", "float32", "bfloat16"] = key(
        "auto",
        help="Type of activations and of gathered parameters; auto: float32 on CPU, bfloat16 on GPU.",
        kind="numerics",
    )
    compile: Literal["none", "blocks", "model"] = key("none", help="What torch.compile sees.", kind="numerics")
    activation_checkpointing: Literal["none", "full", "operations"] = key(
        "none",
        help="What is recomputed in the backward pass: nothing, blocks, or all but matmuls and attention.",
        kind="numerics",
    )
    checkpoint_every_blocks: int = key(1, help="full: recompute every n-th block only.", kind="numerics")
    loss_chunk_tokens: int | None = key(
        None, help="Tokens whose logits exist at one time; left out, about 8 MB of them on CPU.", kind="numerics"
    )
    deterministic: bool = key(True, help="Refuse operations that are not deterministic.", kind="numerics")

    def __post_init__(self) -> None:
        for name in ("world_size", "threads_per_rank", "checkpoint_every_blocks"):
            if getattr(self, name) < 1:
                raise Invalid(name, f"expected 1 or more, got {getattr(self, name)}")
        for name in ("micro_batch", "loss_chunk_tokens"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise Invalid(name, f"expected 1 or more, got {getattr(self, name)}")
        model_parallel, ranks = self.layout.tensor, self.world_size
        if ranks % model_parallel:
            raise Invalid(
                "layout.tensor", f"expected a divisor of world_size={ranks}, got {model_parallel}; change one of them"
            )
        if (ranks // model_parallel) % self.layout.replicate:
            raise Invalid(
                "layout.replicate",
                f"expected a divisor of the {ranks // model_parallel} data-parallel ranks, got {self.layout.replicate}; change",
            )

    @property
    def data_parallel(self) -> int:
        """Number of ranks that read different sequences."""
        return self.world_size // self.layout.tensor


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeConfig:
    """What changes neither bits nor meaning."""

    nodes: int = key(1, help="Nodes of a cluster over which the ranks spread evenly.", kind="runtime")
    log_every: int = key(1, help="Steps between lines of metrics.jsonl.", kind="runtime")
    checkpoint_every_steps: int | None = key(None, help="Steps between resume checkpoints.", kind="runtime")
    checkpoint_every_seconds: float | None = key(
        60.0, help="Seconds between resume checkpoints; null: by steps alone.", kind="runtime"
    )
    keep_checkpoints: int = key(2, help="Resume checkpoints that are kept.", kind="runtime")
    asynchronous: bool = key(True, help="Write resume checkpoints while training goes on.", kind="runtime")
    validate_every: int | None = key(
        None, help="Steps between validations inside a segment; its end always has one.", kind="runtime"
    )
    validation_tokens: int = key(65536, help="Tokens per source for it, at most.", kind="runtime")
    validation_documents: int = key(
        64, help="Held-out documents per source for validation while training.", kind="runtime"
    )
    tensorboard: bool = key(True, help="Write TensorBoard events.", kind="runtime")
    stop_after_seconds: float | None = key(
        None, help="Save and stop after this time, to be started again.", kind="runtime"
    )
    collective_timeout_seconds: float = key(600.0, help="After this time a collective counts as hung.", kind="runtime")
    profile_step: int | None = key(None, help="Step whose torch profile is written to profile.json.", kind="runtime")

    def __post_init__(self) -> None:
        for name in ("nodes", "log_every", "keep_checkpoints", "checkpoint_every_steps", "validate_every"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise Invalid(name, f"expected 1 or more, got {getattr(self, name)}")
        if self.validation_documents < 0:
            raise Invalid("validation_documents", f"expected 0 or more, got {self.validation_documents}")
        for name in ("checkpoint_every_seconds", "stop_after_seconds", "collective_timeout_seconds"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise Invalid(name, f"expected more than 0 seconds, got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PretrainingConfig:
    """The section `pretraining:` as written."""

    model: ModelConfig = key(help="The architecture and its sizes; give a preset, or dim, layers and heads.")
    total_steps: int | None = key(None, help="Length of the training in steps.")
    total_tokens: int | None = key(None, help="Length of the training in tokens, rounded up to a whole step.")
    global_batch_tokens: int | None = key(
        None, help="Tokens per step over all ranks; a multiple of packing.sequence_length."
    )
    learning_rate: float | None = key(None, help="Peak learning rate; left out, the preset's.")
    schedule: ScheduleConfig = key(factory=ScheduleConfig, help="How the learning rate moves.")
    optimizer: OptimizerConfig = key(factory=OptimizerConfig, help="The optimizer.")
    clip: float | None = key(1.0, help="Largest global gradient norm; null: no clipping.")
    data_seed: int = key(0, help="Seed of the order of sequences.")
    init_seed: int = key(0, help="Seed of the initial weights.")
    evaluate_every: int | None = key(None, help="Steps between evaluated checkpoints; the end always is one.")
    evaluation_steps: tuple[int, ...] = key(
        (), help="More steps that are evaluated; also branch points for longer runs."
    )
    document_mask: bool = key(False, help="Attend only within a document, positions counted from its beginning.")
    z_loss: float | None = key(
        None, help="Weight of the squared log-partition in the loss, such as 1e-4.", neutral=None
    )
    nonfinite: Literal["stop", "skip"] = key(
        "stop", help="What a loss or gradient that is not finite does.", neutral="stop"
    )
    numerics: NumericsConfig = key(factory=NumericsConfig, help="Ranks, layout, precision.", kind="numerics")
    runtime: RuntimeConfig = key(factory=RuntimeConfig, help="Logging and resume checkpoints.", kind="runtime")

    def __post_init__(self) -> None:
        if self.numerics.world_size % self.runtime.nodes:
            raise Invalid(
                "runtime.nodes",
                f"expected a divisor of world_size={self.numerics.world_size}, got {self.runtime.nodes}; change one of them",
            )
        if self.total_steps is not None and self.total_tokens is not None:
            raise Invalid("total_tokens", "expected total_steps or total_tokens, got both; leave one out")
        if self.model.preset is None:
            if self.total_steps is None and self.total_tokens is None:
                raise Invalid("total_steps", "missing; give total_steps or total_tokens")
            for name in ("global_batch_tokens", "learning_rate"):
                if getattr(self, name) is None:
                    raise Invalid(name, "missing; give a number, or model.preset, which brings one")
        for name in ("total_steps", "total_tokens", "global_batch_tokens", "evaluate_every"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise Invalid(name, f"expected 1 or more, got {getattr(self, name)}")
        for name in ("learning_rate", "clip", "z_loss"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise Invalid(name, f"expected a finite number above 0, got {value}")
        for name in ("data_seed", "init_seed"):
            if not 0 <= getattr(self, name) < 2**63:
                raise Invalid(name, f"expected a whole number from 0 to below 2^63, got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Decay:
    """The part of a schedule that knows an end."""

    shape: DecayShape = key(help="linear, cosine or minus_sqrt.")
    start_step: int = key(help="Last step at the peak rate.")
    end_step: int = key(help="Step at which the rate is min_ratio of the peak.")
    min_ratio: float = key(help="Last rate as a share of the peak.")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SegmentSection:
    """What the steps from `start_step` to `end_step` read, and nothing else."""

    model: LlamaConfig = key(help="The model, sizes filled in.")
    start_step: int = key(help="First step.")
    end_step: int = key(help="The step after the last.")
    sequence_length: int = key(help="Tokens per sequence.")
    global_batch_sequences: int = key(help="Sequences per step over all ranks.")
    learning_rate: float = key(help="Peak learning rate.")
    warmup_steps: int = key(help="Steps of linear warm-up from 0.")
    decay: Decay | None = key(None, help="The decay, if these steps reach into it.")
    optimizer: OptimizerConfig = key(factory=OptimizerConfig, help="The optimizer.")
    clip: float | None = key(1.0, help="Largest global gradient norm.")
    data_seed: int = key(0, help="Seed of the order of sequences.")
    init_seed: int = key(0, help="Seed of the initial weights.")
    document_mask: bool = key(False, help="Attend only within a document.")
    z_loss: float | None = key(None, help="Weight of the squared log-partition.", neutral=None)
    nonfinite: Literal["stop", "skip"] = key("stop", help="What a value that is not finite does.", neutral="stop")
    numerics: NumericsConfig = key(factory=NumericsConfig, help="Ranks, layout, precision.", kind="numerics")
    runtime: RuntimeConfig = key(factory=RuntimeConfig, help="Logging and resume checkpoints.", kind="runtime")
    max_epochs: float | None = key(None, kind="runtime", help="packing.max_epochs, checked before the first step.")
    planned_steps: int | None = key(None, kind="runtime", help="Length of the whole training, for that check.")

    @property
    def tokens_per_step(self) -> int:
        """Tokens per step over all ranks."""
        return self.global_batch_sequences * self.sequence_length


def total_steps(config: PretrainingConfig, sequence_length: int) -> int:
    """Return the length of the training in steps."""
    if config.total_steps is not None:
        return config.total_steps
    tokens = config.total_tokens
    if tokens is None:
        assert config.model.preset is not None
        tokens = PRESETS[config.model.preset].total_tokens
    return -(-tokens // batch_tokens(config, sequence_length))


def batch_tokens(config: PretrainingConfig, sequence_length: int) -> int:
    """Return the tokens per step, a whole number of sequences."""
    if config.global_batch_tokens is not None:
        return config.global_batch_tokens
    assert config.model.preset is not None
    return max(1, PRESETS[config.model.preset].batch_sequences * 2048 // sequence_length) * sequence_length


def evaluation_steps(config: PretrainingConfig, sequence_length: int) -> tuple[int, ...]:
    """Return the steps whose checkpoints are evaluated, the end last."""
    end = total_steps(config, sequence_length)
    regular = range(config.evaluate_every, end, config.evaluate_every) if config.evaluate_every is not None else ()
    return tuple(sorted({*regular, *(s for s in config.evaluation_steps if s <= end), end}))


def segments(config: PretrainingConfig, sequence_length: int) -> list[SegmentSection]:
    """Return the chain of segments, first to last; see the module's docstring."""
    end = total_steps(config, sequence_length)
    decay = _decay(config.schedule, end)
    boundaries = {0, *evaluation_steps(config, sequence_length)}
    if decay is not None and config.schedule.name == "wsd":
        boundaries.add(decay.start_step)
    steps = sorted(boundaries)
    return [_segment(config, sequence_length, decay, a, b) for a, b in itertools.pairwise(steps)]


def _decay(schedule: ScheduleConfig, end: int) -> Decay | None:
    if schedule.name == "constant":
        return None
    if schedule.name == "wsd":
        share = schedule.decay_share if schedule.decay_share is not None else 0.2
        steps = schedule.decay_steps if schedule.decay_steps is not None else max(1, round(share * end))
        start, shape = end - steps, schedule.decay_shape
    else:
        start, shape = min(schedule.warmup_steps, end), schedule.name
    return Decay(shape=shape, start_step=start, end_step=end, min_ratio=schedule.min_ratio)


def _segment(
    config: PretrainingConfig, sequence_length: int, decay: Decay | None, start: int, end: int
) -> SegmentSection:
    model = config.model.resolved()
    model = dataclasses.replace(model, source_digest=architectures.source_digest(model))
    stable = decay is None or (config.schedule.name == "wsd" and end <= decay.start_step)
    return SegmentSection(
        model=model,
        start_step=start,
        end_step=end,
        sequence_length=sequence_length,
        global_batch_sequences=batch_tokens(config, sequence_length) // sequence_length,
        learning_rate=learning_rate(config),
        warmup_steps=config.schedule.warmup_steps,
        decay=None if stable else decay,
        optimizer=config.optimizer,
        clip=config.clip,
        data_seed=config.data_seed,
        init_seed=config.init_seed,
        document_mask=config.document_mask,
        z_loss=config.z_loss,
        nonfinite=config.nonfinite,
        numerics=config.numerics,
        runtime=config.runtime,
    )


def learning_rate(config: PretrainingConfig) -> float:
    """Return the peak learning rate, the preset's if none is given."""
    if config.learning_rate is not None:
        return config.learning_rate
    assert config.model.preset is not None
    return PRESETS[config.model.preset].learning_rate


def model_config(config: PretrainingConfig, vocab_size: int | None) -> LlamaConfig:
    """Return the model's sizes with the vocabulary filled in."""
    model = config.model.resolved()
    return model if model.vocab_size is not None else dataclasses.replace(model, vocab_size=vocab_size)


def parameters(config: PretrainingConfig, vocab_size: int | None) -> int:
    """Return the number of trainable parameters."""
    model = model_config(config, vocab_size)
    count: int = architectures.counts_module(model).parameters(model)
    return count


def flops_per_token(config: PretrainingConfig, vocab_size: int | None, sequence_length: int) -> int:
    """Return the training FLOPs per token; the formula stands in `models/llama_config.py`."""
    model = model_config(config, vocab_size)
    count: int = architectures.counts_module(model).flops_per_token(model, sequence_length=sequence_length)
    return count


def check(config: PretrainingConfig, *, sequence_length: int, vocab_size: int | None = None) -> None:
    """Raise `Invalid` for what one section alone cannot see: batch, sequence length, ranks, steps, vocabulary."""
    _check_batch(config, sequence_length)
    _check_steps(config, sequence_length)
    _check_model(config, vocab_size)


def _check_batch(config: PretrainingConfig, sequence_length: int) -> None:
    tokens, numerics = batch_tokens(config, sequence_length), config.numerics
    if tokens % sequence_length:
        nearest = max(1, round(tokens / sequence_length)) * sequence_length
        raise Invalid(
            "global_batch_tokens",
            f"expected a multiple of packing.sequence_length={sequence_length}, got {tokens}; take {nearest}",
        )
    sequences, ranks = tokens // sequence_length, numerics.data_parallel
    if sequences % ranks:
        nearest = max(1, round(sequences / ranks)) * ranks * sequence_length
        raise Invalid(
            "global_batch_tokens",
            f"expected {sequences} sequences to divide among {ranks} data-parallel ranks, got a rest; take {nearest}",
        )
    share, micro = sequences // ranks, numerics.micro_batch
    if micro is not None and share % micro:
        raise Invalid(
            "numerics.micro_batch",
            f"expected a divisor of the {share} sequences per rank and step, got {micro}; take {math.gcd(share, micro)}",
        )
    if numerics.layout.tensor > 1 and sequence_length % numerics.layout.tensor:
        raise Invalid(
            "numerics.layout.tensor",
            f"expected a divisor of packing.sequence_length={sequence_length}, got {numerics.layout.tensor}; change one of them",
        )


def _check_steps(config: PretrainingConfig, sequence_length: int) -> None:
    end = total_steps(config, sequence_length)
    for step in config.evaluation_steps:
        if not 0 < step <= end:
            raise Invalid("evaluation_steps", f"expected steps from 1 to {end}, the last, got {step}; remove it")
    decay = _decay(config.schedule, end)
    if decay is not None and config.schedule.name == "wsd" and decay.start_step < config.schedule.warmup_steps:
        raise Invalid(
            "schedule.warmup_steps",
            f"expected warm-up to end before the decay starts at step {decay.start_step} of {end}, "
            f"got {config.schedule.warmup_steps}; shorten one of them",
        )


def _check_model(config: PretrainingConfig, vocab_size: int | None) -> None:
    model = config.model.resolved()
    _check_layout(config, model)
    if model.vocab_size is not None and vocab_size is not None and model.vocab_size < vocab_size:
        raise Invalid(
            "model.vocab_size",
            f"expected at least the tokenizer's {vocab_size} ids, got {model.vocab_size}; leave it out to take the tokenizer's",
        )
    try:
        architectures.source_digest(model)
        counts: Any = architectures.counts_module(model)
        counts.parameters(dataclasses.replace(model, vocab_size=model.vocab_size or vocab_size or 1))
    except Invalid as error:
        raise Invalid(f"model.{error.key}", error.message) from None
    except ConfigError as error:
        raise Invalid("model.options", str(error)) from None


def _check_layout(config: PretrainingConfig, model: LlamaConfig) -> None:
    layout = config.numerics.layout
    if layout.tensor > 1 and not getattr(architectures.counts_module(model), "TENSOR_PARALLEL", False):
        raise Invalid(
            "numerics.layout.tensor",
            f"expected 1 for model.architecture={model.architecture}, got {layout.tensor}; shard with strategy: fsdp",
        )
    if layout.tensor > 1 and model.kv_heads % layout.tensor:
        raise Invalid(
            "numerics.layout.tensor",
            f"expected a divisor of model.kv_heads={model.kv_heads}, got {layout.tensor}; "
            f"take {math.gcd(model.kv_heads, layout.tensor)}",
        )
    half = config.numerics.precision == "bfloat16"
    if layout.strategy == "ddp" and (layout.replicate > 1 or layout.tensor > 1 or layout.cpu_offload or half):
        raise Invalid(
            "numerics.layout.strategy",
            "expected fsdp with replicate, tensor, cpu_offload or bfloat16, got ddp; take fsdp",
        )
