"""Our model in Hugging Face's terms: class, `config.json`, names of tensors. Torch-free."""

from collections.abc import Mapping
from typing import Any

from modalities.errors import InputError
from modalities.models.llama_config import LlamaConfig


def check_stock(config: LlamaConfig) -> None:
    """Raise `InputError` for a model that no stock class can hold."""
    if config.architecture != "llama":
        raise InputError(
            f"model.architecture: expected llama, which transformers has a class for, got {config.architecture!r}; "
            "evaluate it from its checkpoint, or train a llama"
        )


def hf_config(
    config: LlamaConfig, *, sequence_length: int, dtype: str, begin: int | None, end: int | None
) -> dict[str, Any]:
    """Return `config.json`: Llama, or Qwen3 for QK-norm. Both forms of the RoPE base, for transformers 4 and 5."""
    check_stock(config)
    common = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": begin,
        "dtype": dtype,
        "eos_token_id": end,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.dim,
        "initializer_range": config.init_std,
        "intermediate_size": config.ffn_dim,
        "max_position_embeddings": sequence_length,
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "pad_token_id": None,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_theta": config.rope_base, "rope_type": "default"},
        "rope_theta": config.rope_base,
        "tie_word_embeddings": config.tied_embeddings,
        "torch_dtype": dtype,
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }
    if config.qk_norm:
        own = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "use_sliding_window": False}
    else:
        own = {"architectures": ["LlamaForCausalLM"], "mlp_bias": False, "model_type": "llama"}
    return common | own


def generation_config(*, begin: int | None, end: int | None) -> dict[str, Any]:
    """Return `generation_config.json`; padding is the end token, as the model has no token of its own for it."""
    return {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": end}


def ordered_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Return our parameters and their shapes, in the order in which they are written; a tied output layer is left out."""
    dim, heads, kv = config.dim, config.heads * config.head_dim, config.kv_heads * config.head_dim
    assert config.vocab_size is not None
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config.vocab_size, dim)}
    for layer in range(config.layers):
        block: dict[str, tuple[int, ...]] = {
            "input_layernorm": (dim,),
            "self_attn.q_proj": (heads, dim),
            "self_attn.k_proj": (kv, dim),
            "self_attn.v_proj": (kv, dim),
            "self_attn.o_proj": (dim, heads),
            "post_attention_layernorm": (dim,),
            "mlp.gate_proj": (config.ffn_dim, dim),
            "mlp.up_proj": (config.ffn_dim, dim),
            "mlp.down_proj": (dim, config.ffn_dim),
        }
        if config.qk_norm:
            block |= {"self_attn.q_norm": (config.head_dim,), "self_attn.k_norm": (config.head_dim,)}
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    shapes["norm.weight"] = (dim,)
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, dim)
    return shapes


def own_config(data: Mapping[str, Any], *, what: str) -> LlamaConfig:
    """Return our config for a Llama or Qwen3 `config.json`; raise `InputError`, naming the key, for what we cannot represent."""
    kind = data.get("model_type")
    if kind not in ("llama", "qwen3"):
        raise InputError(f"{what}: model_type: expected llama or qwen3, got {kind!r}; convert another model")
    for key, wanted in (
        ("attention_bias", False),
        ("mlp_bias", False),
        ("hidden_act", "silu"),
        ("use_sliding_window", False),
    ):
        if data.get(key, wanted) != wanted:
            raise InputError(f"{what}: {key}: expected {wanted!r}, got {data[key]!r}, which our model does not have")
    return LlamaConfig(
        dim=data["hidden_size"],
        layers=data["num_hidden_layers"],
        heads=data["num_attention_heads"],
        kv_heads=data.get("num_key_value_heads") or data["num_attention_heads"],
        head_dim=data.get("head_dim") or data["hidden_size"] // data["num_attention_heads"],
        ffn_dim=data["intermediate_size"],
        vocab_size=data["vocab_size"],
        rope_base=_rope_base(data, what),
        norm_eps=data.get("rms_norm_eps", 1e-6),
        tied_embeddings=data.get("tie_word_embeddings", False),
        qk_norm=kind == "qwen3",
        init_std=data.get("initializer_range", 0.02),
    )


def _rope_base(data: Mapping[str, Any], what: str) -> float:
    """Return the RoPE base, from either form; both forms must agree."""
    parameters = data.get("rope_parameters") or data.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise InputError(
            f"{what}: rope_parameters.rope_type: expected default, got {kind!r}, which our model does not have"
        )
    found = {float(value) for value in (parameters.get("rope_theta"), data.get("rope_theta")) if value is not None}
    if len(found) > 1:
        raise InputError(f"{what}: rope_theta: expected one base, got {sorted(found)}; make both forms equal")
    return found.pop() if found else 10_000.0
