"""A Llama-family decoder on one device: RMSNorm, rotary positions, grouped queries, SwiGLU; with QK-norm it is Qwen3.

Weights have Hugging Face's layout (separate q, k, v; a rotation pairs element i with i + head_dim / 2) and float32 logits are
bit-equal to theirs. Parallelism comes from outside (`pretraining/parallel.py`); blocks stand in a `ModuleDict`, so that a
pipeline stage may drop some, and its embedding or output layer too. Shapes: B sequences, T tokens, H heads, K key heads,
E head width, D model width.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modalities.models.llama_config import LlamaConfig

Loss = Callable[[Tensor, nn.Module], Tensor]
"""(hidden states [B, T, D], output layer) -> scalar."""


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """What every block needs beside the hidden states."""

    cos: Tensor
    """[T, E / 2] or, with own positions per sequence, [B, 1, T, E / 2]; float32."""
    sin: Tensor
    mask: Tensor | None
    """[B, 1, T, T], true where a query (row) sees a key (column); None is plain causal attention."""


class Attention(nn.Module):
    """Causal attention with grouped queries."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.grouped = config.heads != config.kv_heads
        self.q_proj = nn.Linear(config.dim, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.dim, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps) if config.qk_norm else None
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention output for normalised hidden states [B, T, D]."""
        query, key, value = (self._heads(layer(x)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key, value = (h.transpose(1, 2) for h in (query, key, value))
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=self.grouped
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, dim: int, ffn_dim: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, ffn_dim, bias=False)
        self.up_proj = nn.Linear(dim, ffn_dim, bias=False)
        self.down_proj = nn.Linear(ffn_dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return down(silu(gate(x)) * up(x))."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """One pre-norm decoder block."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.mlp: nn.Module = FeedForward(config.dim, config.ffn_dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """Return the residual stream [B, T, D] after this block."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Embedding, blocks, norm, output layer. `block` makes one block, so that other architectures differ in it alone."""

    def __init__(self, config: LlamaConfig, block: Callable[[LlamaConfig], nn.Module] = Block) -> None:
        super().__init__()
        assert config.vocab_size is not None, "the vocabulary is filled in before a model is built"
        self.config = config
        self.embed_tokens: nn.Module | None = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleDict({str(i): block(config) for i in range(config.layers)})
        self.norm: nn.Module | None = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.lm_head: nn.Module | None = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.tie()
        self._tables: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def tie(self) -> None:
        """Make embedding and output layer one parameter again, which moving or wrapping may have undone."""
        if self.config.tied_embeddings and self.lm_head is not None and self.embed_tokens is not None:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens: Tensor, *, documents: Tensor | None = None, loss: Loss | None = None) -> Tensor:
        """Return logits [B, T, V], or what `loss` makes of the last hidden states.

        `tokens` are [B, T] (hidden states, if this is a later pipeline stage). `documents` [B, T] numbers the document of each
        token; with it, attention stays within a document and positions start at 0 in each.
        """
        context = self.context(tokens.shape[1], tokens.device, documents)
        x = self.embed_tokens(tokens) if self.embed_tokens is not None else tokens
        for block in self.layers.values():
            x = block(x, context.cos, context.sin, context.mask)
        if self.norm is not None:
            x = self.norm(x)
        if self.lm_head is None:
            return x
        return loss(x, self.lm_head) if loss is not None else self.lm_head(x)

    def context(self, length: int, device: torch.device, documents: Tensor | None) -> Context:
        """Return rotary tables and mask for sequences of `length` tokens."""
        cos, sin = self._rope(length, device)
        if documents is None:
            return Context(cos, sin, None)
        positions = document_positions(documents)
        return Context(cos[positions].unsqueeze(1), sin[positions].unsqueeze(1), document_mask(documents))

    def _rope(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        name = (length, device)
        if name not in self._tables:
            with torch.inference_mode(False):
                self._tables[name] = rope_tables(length, self.config.head_dim, self.config.rope_base, device)
        return self._tables[name]


def build(config: LlamaConfig) -> Decoder:
    """Make the model; weights are torch's defaults until `initialisation.initialise` sets them."""
    return Decoder(config)


def rope_tables(length: int, head_dim: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [T, E / 2] in float32: bfloat16 tables are off by whole radians at long range."""
    pairs = torch.arange(0, head_dim, 2, dtype=torch.int64, device=device).float()
    frequencies = 1.0 / (base ** (pairs / head_dim))
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (i, i + E / 2) of [B, H, T, E] by their position's angle; computed in float32."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def document_positions(documents: Tensor) -> Tensor:
    """Return [B, T]: how far each token is from the beginning of its document."""
    length = documents.shape[1]
    places = torch.arange(length, device=documents.device).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return places - torch.where(begins, places, 0).cummax(dim=1).values


def document_mask(documents: Tensor) -> Tensor:
    """Return [B, 1, T, T]: true where a token may attend, causal and within its document."""
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & causal).unsqueeze(1)


def tensor_plan(config: LlamaConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensor-parallel plans of the root module and of a block; between layers, sequences are sharded."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    shard = Shard(1)
    root = {
        "embed_tokens": tp.RowwiseParallel(input_layouts=Replicate(), output_layouts=shard),
        "norm": tp.SequenceParallel(),
        "lm_head": tp.ColwiseParallel(input_layouts=shard, output_layouts=Shard(-1), use_local_output=False),
    }
    gathered = tp.PrepareModuleInput(
        input_layouts=(shard, None, None, None), desired_input_layouts=(Replicate(), None, None, None)
    )
    block = {
        "input_layernorm": tp.SequenceParallel(),
        "post_attention_layernorm": tp.SequenceParallel(),
        "self_attn": gathered,
        "self_attn.q_proj": tp.ColwiseParallel(),
        "self_attn.k_proj": tp.ColwiseParallel(),
        "self_attn.v_proj": tp.ColwiseParallel(),
        "self_attn.o_proj": tp.RowwiseParallel(output_layouts=shard),
        "mlp": tp.PrepareModuleInput(input_layouts=(shard,), desired_input_layouts=(Replicate(),)),
        "mlp.gate_proj": tp.ColwiseParallel(),
        "mlp.up_proj": tp.ColwiseParallel(),
        "mlp.down_proj": tp.RowwiseParallel(output_layouts=shard),
    }
    if config.qk_norm:
        per_head = {
            f"self_attn.{n}": tp.SequenceParallel(sequence_dim=2, use_local_output=True) for n in ("q_norm", "k_norm")
        }
        block.update(per_head)
    return root, block


def hf_name(name: str) -> str:
    """Return Hugging Face's name of one of our parameters."""
    return name if name.startswith("lm_head.") else f"model.{name}"


def own_name(name: str) -> str:
    """Return our name of one of Hugging Face's parameters."""
    return name.removeprefix("model.")
