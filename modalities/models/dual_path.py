"""The dual-path decoder (arXiv 2605.30202) on the Llama block: what is not in the paper is marked as our reading.

On the normalised input u of the feed-forward part, the deep path applies one layer K times, h_k = h_(k-1) +
FFN(norm(h_(k-1))) with h_0 = u, and returns a weighted combination of h_1 .. h_K (our reading: free
weights that start at 1 / K); the wide path is one larger layer. Two gates per token, sigmoid(linear(u)), start at 0.5 and
mix them. The attention is Llama's, outside the budget.
"""

import torch
from torch import Tensor, nn

from modalities.models import llama
from modalities.models.dual_path_config import options, widths
from modalities.models.llama import FeedForward, hf_name, own_name
from modalities.models.llama_config import LlamaConfig

__all__ = ["DualPath", "build", "hf_name", "own_name"]


class DualPath(nn.Module):
    """Deep and wide path side by side; takes the place of a block's feed-forward layer."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        deep, wide = widths(config)
        self.loops = options(config).loops
        if deep > 0:
            self.deep = FeedForward(config.dim, deep)
            self.loop_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
            self.combination = nn.Linear(self.loops, 1, bias=False)
            self.deep_gate = nn.Linear(config.dim, 1)
        if wide > 0:
            self.wide = FeedForward(config.dim, wide)
            self.wide_gate = nn.Linear(config.dim, 1)
        self.has_deep, self.has_wide = deep > 0, wide > 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the gated sum of both paths for normalised hidden states [B, T, D]."""
        out = torch.zeros_like(x)
        if self.has_deep:
            state, states = x, []
            for _ in range(self.loops):
                state = state + self.deep(self.loop_norm(state))
                states.append(state)
            mixed = self.combination(torch.stack(states, dim=-1)).squeeze(-1)
            out = out + torch.sigmoid(self.deep_gate(x)) * mixed
        if self.has_wide:
            out = out + torch.sigmoid(self.wide_gate(x)) * self.wide(x)
        return out

    def deep_share(self, x: Tensor) -> Tensor:
        """Return [B, T]: the deep gate over the sum of both, the figure that the paper analyses."""
        deep, wide = torch.sigmoid(self.deep_gate(x)), torch.sigmoid(self.wide_gate(x))
        return (deep / (deep + wide)).squeeze(-1)


def build(config: LlamaConfig) -> llama.Decoder:
    """Make the model; weights are torch's defaults until `initialisation.initialise` sets them."""
    return llama.Decoder(config, _block)


def _block(config: LlamaConfig) -> llama.Block:
    block = llama.Block(config)
    block.mlp = DualPath(config)
    return block
