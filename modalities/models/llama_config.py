"""Sizes of a Llama-family decoder, and arithmetic on them. Torch-free, so that the plan can count without it.

A section `model:` is written with presets and gaps (`ModelConfig`); the plan, the checkpoint and every later stage see a
`LlamaConfig` in which each size is a number and only `vocab_size` may wait for the tokenizer.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from modalities.config import key
from modalities.errors import Invalid

TENSOR_PARALLEL = True
"""Whether the module beside this one has a `tensor_plan`."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LlamaConfig:
    """Everything that fixes the function and the initial weights of a decoder, but for the seed."""

    dim: int = key(help="Width of the residual stream.")
    layers: int = key(help="Number of decoder blocks.")
    heads: int = key(help="Number of query heads.")
    kv_heads: int = key(help="Number of key and value heads; `heads` must be a multiple of it.")
    head_dim: int = key(help="Width of one head; even, because rotary embeddings turn pairs.")
    ffn_dim: int = key(help="Width of the SwiGLU layer.")
    vocab_size: int | None = key(None, help="Number of token embeddings; left out, the tokenizer's.")
    rope_base: float = key(10000.0, help="Base of the rotary frequencies.")
    norm_eps: float = key(1e-5, help="Added to the mean square in RMSNorm.")
    tied_embeddings: bool = key(True, help="Whether the output layer is the transposed embedding.")
    qk_norm: bool = key(False, help="Whether queries and keys are normalised per head, as in Qwen3.")
    init_std: float = key(0.02, help="Standard deviation of the initial weights.")
    depth_scaled_init: bool = key(
        True, help="Whether layers that write to the residual stream start at std / sqrt(2 layers)."
    )
    architecture: str = key(
        "llama", help="`llama`, `dual_path`, or the import path of a module of yours.", neutral="llama"
    )
    options: dict[str, Any] = key(factory=dict, help="Keys of an architecture other than `llama`.", neutral={})
    source_digest: str | None = key(None, help="Hash of the source of your own architecture; filled in.", neutral=None)

    def __post_init__(self) -> None:
        for name in ("dim", "layers", "heads", "kv_heads", "head_dim", "ffn_dim"):
            _positive(name, getattr(self, name))
        if self.vocab_size is not None:
            _positive("vocab_size", self.vocab_size)
        if self.heads % self.kv_heads:
            raise Invalid(
                "kv_heads",
                f"expected a divisor of heads={self.heads}, got {self.kv_heads}; take one of {_divisors(self.heads)}",
            )
        if self.head_dim % 2:
            raise Invalid("head_dim", f"expected an even width, got {self.head_dim}; change dim or heads")
        for name in ("rope_base", "norm_eps", "init_std"):
            if not getattr(self, name) > 0:
                raise Invalid(name, f"expected a number above 0, got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The section `model:` as written: what a preset or a rule can fill may be left out."""

    preset: str | None = key(
        None, help="A size after DataDecide's ladder: 4m, 10m, 20m, 60m, 150m, 300m, 530m, 750m, 1b."
    )
    architecture: str = key(
        "llama", help="`llama`, `dual_path`, or the import path of a module of yours.", neutral="llama"
    )
    dim: int | None = key(None, help="Width of the residual stream.")
    layers: int | None = key(None, help="Number of decoder blocks.")
    heads: int | None = key(None, help="Number of query heads.")
    kv_heads: int | None = key(None, help="Number of key and value heads; left out, as many as heads.")
    head_dim: int | None = key(None, help="Width of one head; left out, dim / heads.")
    ffn_dim: int | None = key(None, help="Width of the SwiGLU layer; left out, 8/3 dim rounded up to a multiple of 32.")
    vocab_size: int | None = key(None, help="Number of token embeddings; left out, the tokenizer's.")
    rope_base: float = key(10000.0, help="Base of the rotary frequencies.")
    norm_eps: float = key(1e-5, help="Added to the mean square in RMSNorm.")
    tied_embeddings: bool | None = key(
        None, help="Whether the output layer is the transposed embedding; true but for presets."
    )
    qk_norm: bool = key(False, help="Whether queries and keys are normalised per head, as in Qwen3.")
    init_std: float = key(0.02, help="Standard deviation of the initial weights.")
    depth_scaled_init: bool = key(
        True, help="Whether layers that write to the residual stream start at std / sqrt(2 layers)."
    )
    options: dict[str, Any] = key(factory=dict, help="Keys of an architecture other than `llama`.", neutral={})

    def __post_init__(self) -> None:
        if self.preset is not None and self.preset not in PRESETS:
            raise Invalid("preset", f"expected one of {', '.join(PRESETS)}, got {self.preset!r}")
        if self.preset is None:
            for name in ("dim", "layers", "heads"):
                if getattr(self, name) is None:
                    raise Invalid(name, "missing; give dim, layers and heads, or a preset")
        self.resolved()

    def resolved(self) -> LlamaConfig:
        """Return the sizes with every gap filled."""
        preset = PRESETS[self.preset] if self.preset is not None else None
        dim = _first(self.dim, preset and preset.dim)
        layers = _first(self.layers, preset and preset.layers)
        heads = _first(self.heads, preset and preset.heads)
        for name, value in (("dim", dim), ("layers", layers), ("heads", heads)):
            _positive(name, value)
        if self.head_dim is None and dim % heads:
            raise Invalid(
                "heads", f"expected a divisor of dim={dim}, got {heads}; take one of {_divisors(dim)}, or give head_dim"
            )
        default_ffn = 4 * dim if preset is not None else -(-8 * dim // 96) * 32
        return LlamaConfig(
            dim=dim,
            layers=layers,
            heads=heads,
            kv_heads=_first(self.kv_heads, heads),
            head_dim=_first(self.head_dim, dim // heads),
            ffn_dim=_first(self.ffn_dim, default_ffn),
            vocab_size=self.vocab_size,
            rope_base=self.rope_base,
            norm_eps=self.norm_eps,
            tied_embeddings=preset is None if self.tied_embeddings is None else self.tied_embeddings,
            qk_norm=self.qk_norm,
            init_std=self.init_std,
            depth_scaled_init=self.depth_scaled_init,
            architecture=self.architecture,
            options=self.options,
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A rung of DataDecide's ladder (arXiv 2504.11393): sizes and the recipe it was trained with, sequences of 2048."""

    dim: int
    layers: int
    heads: int
    batch_sequences: int
    learning_rate: float
    total_tokens: int


PRESETS: Mapping[str, Preset] = {
    name: Preset(dim=d, layers=n, heads=h, batch_sequences=b, learning_rate=lr, total_tokens=int(t * 1e9))
    for name, d, n, h, b, lr, t in (
        ("4m", 64, 8, 8, 32, 1.4e-2, 0.4),
        ("10m", 144, 8, 8, 32, 1.0e-2, 1.0),
        ("20m", 192, 16, 8, 64, 8.4e-3, 1.9),
        ("60m", 384, 16, 12, 96, 5.8e-3, 5.7),
        ("150m", 768, 12, 12, 192, 4.2e-3, 15.0),
        ("300m", 1024, 16, 16, 320, 3.3e-3, 30.0),
        ("530m", 1344, 16, 16, 448, 2.8e-3, 53.0),
        ("750m", 1536, 16, 16, 576, 2.5e-3, 75.0),
        ("1b", 2048, 16, 16, 704, 2.1e-3, 100.0),
    )
}
"""What the published table leaves out follows its rule: batch 160 (N/108M)^(2/3), rate 4.7e-3 (N/108M)^(-1/3)."""


def parameters(config: LlamaConfig) -> int:
    """Return the number of trainable parameters; a tied embedding counts once."""
    vocabulary = _vocabulary(config) * config.dim
    norms = 2 * config.dim + (2 * config.head_dim if config.qk_norm else 0)
    block = attention_weights(config) + 3 * config.dim * config.ffn_dim + norms
    return vocabulary * (1 if config.tied_embeddings else 2) + config.layers * block + config.dim


def matmul_weights(config: LlamaConfig) -> int:
    """Return the number of weights that a token is multiplied with: blocks and output layer, not the embedding look-up."""
    return (
        config.layers * (attention_weights(config) + 3 * config.dim * config.ffn_dim) + _vocabulary(config) * config.dim
    )


def flops_per_token(config: LlamaConfig, *, sequence_length: int) -> int:
    """Return training FLOPs per token: 6 per matmul weight, and causal attention at half its square; no recomputation."""
    return 6 * matmul_weights(config) + 6 * config.layers * config.heads * config.head_dim * sequence_length


def attention_weights(config: LlamaConfig) -> int:
    """Return the number of weights of one attention layer, norms left out."""
    return config.dim * config.head_dim * (2 * config.heads + 2 * config.kv_heads)


def _vocabulary(config: LlamaConfig) -> int:
    if config.vocab_size is None:
        raise Invalid("vocab_size", "expected a number, got none; give it, or take the tokenizer's first")
    return config.vocab_size


def _first(value: Any, other: Any) -> Any:
    return other if value is None else value


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise Invalid(name, f"expected a whole number of 1 or more, got {value}")


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
