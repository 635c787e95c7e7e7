"""Put a single-device model on its ranks, from outside, in this order:

1. tensor and sequence parallelism (`parallelize_module`), then the tie of embedding and output layer again;
2. activation checkpointing;
3. `torch.compile`, in place, so that names stay clean;
4. FSDP2 (`fully_shard` per block, then the rest; on a 2-D mesh it is HSDP), or DDP, or nothing for one rank;
5. memory and initial weights, which depend on seed and name alone (`models/initialisation.py`).

Gradients are summed, never averaged: the loss is scaled by the global number of tokens that count.
"""

import dataclasses
import datetime
import functools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from modalities.errors import Invalid
from modalities.models import architectures
from modalities.models.initialisation import initialise
from modalities.models.llama_config import LlamaConfig
from modalities.pretraining.config import NumericsConfig
from modalities.pretraining.loss import Method

_HashStore: Any = dist.HashStore  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where this process stands: its device, its mesh, and which share of the sequences is its own."""

    device: torch.device
    dtype: torch.dtype
    """Type of activations; parameters and their sums are float32."""
    mesh: DeviceMesh | None
    """Axes `replicate`, `shard`, `tensor`; None for one rank without sharding."""
    data_rank: int
    data_ranks: int
    strategy: str
    """none, ddp or fsdp."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Replica:
    """This rank's part of the model, ready to train."""

    placement: Placement
    model: nn.Module
    """Owns the parameters, under clean names."""
    forward: nn.Module
    """What is called: the model, or DDP around it."""
    loss_method: Method

    @contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:
        """Hold gradients back until the last micro-batch of a step, which sums them over ranks."""
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last)
            self.model.set_is_last_backward(last)
        held: AbstractContextManager[Any] = nullcontext()
        if isinstance(self.forward, DistributedDataParallel) and not last:
            held = self.forward.no_sync()
        with held, self.scoring():
            yield

    def scoring(self) -> AbstractContextManager[Any]:
        """Return the context in which the loss is computed."""
        if self.loss_method != "tensor_parallel":
            return nullcontext()
        from torch.distributed.tensor.parallel import loss_parallel

        return loss_parallel()

    def sum_over_data(self, values: Tensor) -> Tensor:
        """Add up a small CPU tensor over the ranks that read different sequences."""
        mesh = self.placement.mesh
        if mesh is not None:
            # Ranks of one tensor group hold the same value: adding up over all and dividing needs one group only.
            dist.all_reduce(values)
            values /= mesh.size() // self.placement.data_ranks
        return values

    def clip(self, limit: float | None) -> Tensor:
        """Return the global gradient norm, and scale gradients down to `limit`."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        if limit is not None:
            nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return norm


def connect(numerics: NumericsConfig, *, timeout_seconds: float) -> Placement:
    """Set threads and device, join the process group if there is one to join, and build the mesh."""
    torch.set_num_threads(numerics.threads_per_rank)
    device = _device(numerics)
    dtype = _dtype(numerics, device)
    strategy = strategy_of(numerics, device)
    if strategy == "none":
        return Placement(device=device, dtype=dtype, mesh=None, data_rank=0, data_ranks=1, strategy=strategy)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        timeout = datetime.timedelta(seconds=timeout_seconds)
        if numerics.world_size == 1:
            dist.init_process_group(backend, store=_HashStore(), rank=0, world_size=1, timeout=timeout)
        else:
            dist.init_process_group(backend, timeout=timeout)
    if dist.get_world_size() != numerics.world_size:
        raise Invalid(
            "numerics.world_size", f"expected {numerics.world_size} ranks, got {dist.get_world_size()}; start as many"
        )
    tensor, replicate = numerics.layout.tensor, numerics.layout.replicate
    data_ranks = numerics.data_parallel
    shape = (replicate, data_ranks // replicate, tensor)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard", "tensor"))
    return Placement(
        device=device,
        dtype=dtype,
        mesh=mesh,
        data_rank=dist.get_rank() // tensor,
        data_ranks=data_ranks,
        strategy=strategy,
    )


def strategy_of(numerics: NumericsConfig, device: torch.device) -> str:
    """Return none, ddp or fsdp: what `auto` means on this device."""
    layout = numerics.layout
    if layout.strategy != "auto":
        return layout.strategy if numerics.world_size > 1 or layout.strategy == "fsdp" else "none"
    half = numerics.precision == "bfloat16"
    if layout.tensor > 1 or layout.replicate > 1 or layout.cpu_offload or half or device.type == "cuda":
        return "fsdp"
    return "ddp" if numerics.world_size > 1 else "none"


def _device(numerics: NumericsConfig) -> torch.device:
    kind = numerics.device
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Invalid("numerics.device", "expected a CUDA device, got none; set device: cpu or install torch for CUDA")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _dtype(numerics: NumericsConfig, device: torch.device) -> torch.dtype:
    if numerics.precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if numerics.precision == "bfloat16" else torch.float32


def replicate(config: LlamaConfig, numerics: NumericsConfig, placement: Placement, *, seed: int) -> Replica:
    """Build the model and put it on its ranks, in the order that the module's docstring gives."""
    module = architectures.model_module(config)
    with torch.device("meta"):
        model: nn.Module = module.build(config)
    if numerics.layout.tensor > 1:
        _tensor_parallel(model, module, config, placement)
    _checkpoint_activations(model, numerics)
    _compile(model, numerics)
    if placement.strategy == "fsdp":
        _shard(model, numerics, placement)
    offload = numerics.layout.cpu_offload
    model.to_empty(device=torch.device("cpu") if offload else placement.device)
    _tie(model)
    initialise(model, config, seed=seed)
    forward = _ddp(model, placement) if placement.strategy == "ddp" else model
    method: Method = "pieces"
    if numerics.layout.tensor > 1:
        method = "tensor_parallel"
    elif numerics.compile == "model":
        method = "plain"
    return Replica(placement=placement, model=model, forward=forward, loss_method=method)


def _tie(model: nn.Module) -> None:
    tie = getattr(model, "tie", None)
    if tie is not None:
        tie()


def _blocks(model: nn.Module) -> list[nn.Module]:
    layers = getattr(model, "layers", None)
    assert isinstance(layers, nn.ModuleDict), "an architecture keeps its blocks in a ModuleDict named layers"
    return list(layers.values())


def _tensor_parallel(model: nn.Module, module: Any, config: LlamaConfig, placement: Placement) -> None:
    from torch.distributed.tensor.parallel import parallelize_module

    if not hasattr(module, "tensor_plan"):
        raise Invalid(
            "numerics.layout.tensor", f"expected 1 for architecture {config.architecture}, which has no tensor_plan"
        )
    assert placement.mesh is not None
    root, block_plan = module.tensor_plan(config)
    mesh = placement.mesh["tensor"]
    parallelize_module(model, mesh, root)
    for block in _blocks(model):
        parallelize_module(block, mesh, block_plan)
    _tie(model)


_SAVED: list[Any] = [
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
]
"""Results that `activation_checkpointing: operations` keeps: those that are dear to compute again."""


def _checkpoint_activations(model: nn.Module, numerics: NumericsConfig) -> None:
    if numerics.activation_checkpointing == "none":
        return
    every = numerics.checkpoint_every_blocks if numerics.activation_checkpointing == "full" else 1
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if numerics.activation_checkpointing == "operations":
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _SAVED)
    for block in _blocks(model)[::every]:
        # The instance's own attribute keeps names clean, which a wrapper module would not.
        block.forward = functools.partial(checkpoint, block.forward, **options)


def _compile(model: nn.Module, numerics: NumericsConfig) -> None:
    if numerics.compile == "blocks":
        for block in _blocks(model):
            block.compile(fullgraph=True)
    elif numerics.compile == "model":
        model.compile()


def _shard(model: nn.Module, numerics: NumericsConfig, placement: Placement) -> None:
    assert placement.mesh is not None
    axes = ("replicate", "shard") if numerics.layout.replicate > 1 else ("shard",)
    options: dict[str, Any] = {
        "mesh": placement.mesh[axes],
        # Inputs are not cast: that would round the rotary tables.
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=None if placement.dtype == torch.float32 else placement.dtype,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        ),
        "reshard_after_forward": numerics.layout.reshard_after_forward,
    }
    if numerics.layout.cpu_offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=placement.device.type == "cuda")
    for block in _blocks(model):
        fully_shard(block, **options)
    fully_shard(model, **options)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)


def _ddp(model: nn.Module, placement: Placement) -> DistributedDataParallel:
    assert placement.mesh is not None
    # Looking for unused parameters is for its side effect: buckets are never rebuilt after the first step, and so the
    # order of additions, and with it every bit, is the same in a run that was resumed.
    wrapped = DistributedDataParallel(model, find_unused_parameters=True, gradient_as_bucket_view=True)
    wrapped.register_comm_hook(None, _sum_bucket)
    return wrapped


def _sum_bucket(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return cast("torch.futures.Future[Tensor]", work.get_future().then(lambda future: future.value()[0]))
