"""Sizes of the dual-path decoder (arXiv 2605.30202): each block has a deep path (looped, shared weights) beside a wide one.

`model.options` holds `deep_share` (alpha) and `loops` (K). The feed-forward budget of a block is that of `ffn_dim`: the
wide path gets 1 - alpha of its FLOPs; the deep path the rest over K loops, so alpha / K of its weights.
"""

import dataclasses

from modalities.config import build, key
from modalities.errors import Invalid
from modalities.models.llama_config import LlamaConfig, attention_weights


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DualPathOptions:
    """The keys below `model.options`."""

    deep_share: float = key(
        0.5, help="Share of a block's feed-forward FLOPs that goes to the deep path; 0 is pure wide."
    )
    loops: int = key(4, help="How often the deep path is applied.")

    def __post_init__(self) -> None:
        if not 0 <= self.deep_share <= 1:
            raise Invalid("options.deep_share", f"expected a number from 0 to 1, got {self.deep_share}")
        if self.loops < 1:
            raise Invalid("options.loops", f"expected 1 or more, got {self.loops}")


def options(config: LlamaConfig) -> DualPathOptions:
    """Return the checked options of a model section."""
    return build(DualPathOptions, dict(config.options))


def widths(config: LlamaConfig) -> tuple[int, int]:
    """Return the widths of the deep and the wide path."""
    chosen = options(config)
    deep = round(config.ffn_dim * chosen.deep_share / chosen.loops)
    return deep, round(config.ffn_dim * (1 - chosen.deep_share))


def parameters(config: LlamaConfig) -> int:
    """Return the number of trainable parameters; a tied embedding counts once."""
    assert config.vocab_size is not None
    deep, wide = widths(config)
    loops = options(config).loops if deep > 0 else 0
    norms = 2 * config.dim + (config.dim if deep > 0 else 0) + (2 * config.head_dim if config.qk_norm else 0)
    gates = ((deep > 0) + (wide > 0)) * (config.dim + 1)
    block = attention_weights(config) + 3 * config.dim * (deep + wide) + norms + gates + loops
    return config.vocab_size * config.dim * (1 if config.tied_embeddings else 2) + config.layers * block + config.dim


def flops_per_token(config: LlamaConfig, *, sequence_length: int) -> int:
    """Return training FLOPs per token as `llama_config.flops_per_token`; the deep path counts once per loop."""
    assert config.vocab_size is not None
    deep, wide = widths(config)
    gates = ((deep > 0) + (wide > 0)) * config.dim
    block = attention_weights(config) + 3 * config.dim * (options(config).loops * deep + wide) + gates
    weights = config.layers * block + config.vocab_size * config.dim
    return 6 * weights + 6 * config.layers * config.heads * config.head_dim * sequence_length
