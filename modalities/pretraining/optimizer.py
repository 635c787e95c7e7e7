"""AdamW, or Muon for hidden matrices beside it, behind one small face; states by parameter name.

Hyperparameters come from the config and the rate from the schedule at every step, so a checkpoint holds moments and a count of
updates alone. States exist from the start: a fresh optimizer and a loaded one differ in values only.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from modalities.pretraining.config import OptimizerConfig


class Optimizer:
    """All optimizers of a model."""

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self._config = config
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        hidden = [p for p, name in self._names.items() if config.name == "muon" and p.ndim == 2 and "layers." in name]
        chosen = set(hidden)
        rest = [p for p in self._names if p not in chosen]
        self._adamw = _adamw(rest, config)
        self._muon = _muon(hidden, config) if hidden else None

    def step(self, rate: float) -> None:
        """Update all parameters at this learning rate, and drop the gradients."""
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self._adamw.zero_grad()
        if self._muon is not None:
            for group in self._muon.param_groups:
                group["lr"] = rate * self._config.muon_rate_ratio
            self._muon.step()
            self._muon.zero_grad()

    def zero_grad(self) -> None:
        """Drop the gradients without an update."""
        for parameter in self._names:
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the live state tensors by name, for saving and for loading in place; `set_updates` completes a load."""
        return {f"{self._names[p]}.{kind}": t for p, kind, t in self._states() if kind != "step"}

    def updates(self) -> int:
        """Return the number of updates so far."""
        return next((int(t.item()) for _, kind, t in self._states() if kind == "step"), 0)

    def set_updates(self, number: int) -> None:
        """Set the number of updates so far, which bias correction reads."""
        for _, kind, tensor in self._states():
            if kind == "step":
                tensor.fill_(number)

    def _states(self) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
        owners = [optimizer for optimizer in (self._adamw, self._muon) if optimizer is not None]
        for parameter in self._names:
            for optimizer in owners:
                if parameter in optimizer.state:
                    for kind, tensor in optimizer.state[parameter].items():
                        yield parameter, kind, tensor


def _adamw(parameters: list[nn.Parameter], config: OptimizerConfig) -> torch.optim.AdamW:
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (config.betas[0], config.betas[1])
    groups = [group for group in groups if group["params"]]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=config.eps, fused=True)
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def _muon(parameters: list[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    optimizer = torch.optim.Muon(
        parameters,
        lr=0.0,
        weight_decay=config.weight_decay,
        momentum=config.muon_momentum,
        adjust_lr_fn="match_rms_adamw",
    )
    for parameter in parameters:
        optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
    return optimizer
