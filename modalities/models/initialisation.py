"""Initial weights that depend on seed, name and shape of a parameter alone: not on layout, world size or order."""

import hashlib
import math

import torch
from torch import Tensor, nn

from modalities.models.llama_config import LlamaConfig

RESIDUAL = ("o_proj.weight", "down_proj.weight")
"""Ends of names of layers that write to the residual stream."""


@torch.no_grad()
def initialise(model: nn.Module, config: LlamaConfig, *, seed: int) -> None:
    """Set all parameters in place. Peak memory: one full tensor beside the (maybe sharded) model."""
    for name, parameter in model.named_parameters():
        copy_into(parameter, initial(name, tuple(parameter.shape), config, seed=seed))


def initial(name: str, shape: tuple[int, ...], config: LlamaConfig, *, seed: int) -> Tensor:
    """Return a parameter's first value, float32 on the CPU.

    Norms start at 1; biases, and layers whose name ends in `_gate`, at 0; `combination` layers at the mean; others normal,
    cut at three deviations.
    """
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith("combination.weight"):
        return torch.full(shape, 1.0 / shape[-1])
    if name.endswith((".bias", "_gate.weight")):
        return torch.zeros(shape)
    std = config.init_std
    if config.depth_scaled_init and name.endswith(RESIDUAL):
        std /= math.sqrt(2 * config.layers)
    generator = torch.Generator().manual_seed(_seed_of(name, seed))
    return nn.init.trunc_normal_(torch.empty(shape), std=std, a=-3 * std, b=3 * std, generator=generator)


def copy_into(parameter: Tensor, full: Tensor) -> None:
    """Copy a full tensor, equal on all ranks, into a parameter or into this rank's shard of it."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(parameter, DTensor):
        full = distribute_tensor(
            full.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
        )
    parameter.copy_(full)


def _seed_of(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little") >> 1
