"""Summed cross-entropy of a micro-batch, with its logits in pieces.

`TokenLoss` is what a model calls with its last hidden states and output layer. On one device it computes logits, loss and
gradients piece by piece in the forward pass (three matmuls, as the plain loss, and never more than a piece of logits); under
tensor parallelism the logits stay sharded over the vocabulary; under whole-model compilation the compiler sees plain operations.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

IGNORED = -100
"""Target of a token that does not count."""
Method = Literal["pieces", "plain", "tensor_parallel"]


class TokenLoss:
    """Cross-entropy summed over tokens, times `scale`; plus z-loss, if any.

    After the call `losses` holds the cross-entropy of each token [B * T] in nats (0 where it does not count), detached.
    """

    def __init__(
        self, targets: Tensor, *, scale: Tensor | float, method: Method, piece_tokens: int, z_loss: float | None
    ) -> None:
        self.targets, self.scale, self.method = targets.flatten(), scale, method
        self.piece_tokens, self.z_loss = piece_tokens, 0.0 if z_loss is None else z_loss
        self.losses: Tensor | None = None

    def __call__(self, hidden: Tensor, head: nn.Module) -> Tensor:
        """Return the scalar to call `backward` on."""
        if self.method == "pieces":
            weight: Any = head.weight
            total, losses = _Pieces.apply(hidden.flatten(0, 1), weight, self.targets, self.piece_tokens, self.z_loss)  # type: ignore[no-untyped-call]
        else:
            total, losses = self._plain(head(hidden).flatten(0, 1))
        self.losses = losses
        return total * self.scale  # type: ignore[no-any-return]

    def _plain(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits.float()
        losses = F.cross_entropy(logits, self.targets, reduction="none", ignore_index=IGNORED)
        total = _full(losses.sum())
        if self.z_loss > 0:
            total = total + self.z_loss * _full(logits.logsumexp(-1)).square()[self.targets != IGNORED].sum()
        return total, _full(losses.detach())


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class _Pieces(torch.autograd.Function):
    """Loss and gradients in one pass over pieces of tokens; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, piece_tokens: int, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        wanted = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        grad_hidden = torch.empty_like(hidden) if wanted else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if wanted else None
        losses = torch.empty(targets.shape, dtype=torch.float32, device=hidden.device)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for start in range(0, targets.shape[0], piece_tokens):
            piece = slice(start, start + piece_tokens)
            total += _piece(
                hidden[piece], weight, targets[piece], z_loss, losses[piece], _at(grad_hidden, piece), grad_weight
            )
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        ctx.mark_non_differentiable(losses)
        return total, losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grads[0], grad_weight * grads[0], None, None, None


def _at(grad: Tensor | None, piece: slice) -> Tensor | None:
    return None if grad is None else grad[piece]


def _piece(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    z_loss: float,
    losses: Tensor,
    grad_hidden: Tensor | None,
    grad_weight: Tensor | None,
) -> Tensor:
    """Fill `losses` and the gradients of one piece, and return its total."""
    logits = (hidden @ weight.T).float()
    counts = (targets != IGNORED).unsqueeze(1)
    index = targets.clamp(min=0).unsqueeze(1)
    chosen = logits.gather(1, index) if z_loss > 0 else None
    log_probability = torch.log_softmax(logits, dim=1)
    own = log_probability.gather(1, index)
    losses.copy_(torch.where(counts, -own, 0.0).squeeze(1))
    total = losses.sum()
    partition = None if chosen is None else torch.where(counts, chosen - own, 0.0)
    if partition is not None:
        total = total + z_loss * partition.square().sum()
    if grad_hidden is None or grad_weight is None:
        return total
    grad = log_probability.exp_()
    if partition is not None:
        grad *= 1.0 + 2.0 * z_loss * partition
    grad.scatter_(1, index, grad.gather(1, index) - 1.0)
    grad = grad.mul_(counts).to(hidden.dtype)
    torch.mm(grad, weight, out=grad_hidden)
    if grad_weight.dtype == grad.dtype:
        grad_weight.addmm_(grad.T, hidden)
    else:
        grad_weight += grad.T @ hidden
    return total
