"""The decoder against transformers to the bit, documents against each other, counts against modules."""

import dataclasses
from typing import Any

import pytest
import torch

from modalities.config import load, parse
from modalities.errors import ConfigError
from modalities.models import architectures, dual_path_config, llama, llama_config
from modalities.models.initialisation import initialise
from modalities.models.llama_config import LlamaConfig, ModelConfig

TINY = LlamaConfig(dim=64, layers=3, heads=4, kv_heads=2, head_dim=16, ffn_dim=160, vocab_size=300)


def made(config: LlamaConfig, seed: int = 1) -> Any:
    model = architectures.model_module(config).build(config)
    initialise(model, config, seed=seed)
    return model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("qk_norm", [True, False])
def test_logits_are_bit_equal_to_transformers(tied: bool, qk_norm: bool) -> None:
    import transformers

    config = dataclasses.replace(TINY, tied_embeddings=tied, qk_norm=qk_norm, rope_base=50_000.0)
    model = made(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.add_(torch.linspace(-0.5, 0.5, parameter.numel()))
    keys: dict[str, Any] = {
        "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 160, "vocab_size": 300, "rms_norm_eps": 1e-5, "tie_word_embeddings": tied,
        "max_position_embeddings": 512, "rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0},
        "attn_implementation": "sdpa",
    }  # fmt: skip
    if qk_norm:
        peer: Any = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**keys))
    else:
        peer = transformers.LlamaForCausalLM(transformers.LlamaConfig(**keys))
    peer.load_state_dict({llama.hf_name(name): tensor for name, tensor in model.state_dict().items()})
    tokens = torch.randint(0, 300, (2, 200), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model(tokens), peer(tokens).logits)
    assert all(llama.own_name(llama.hf_name(name)) == name for name in model.state_dict())


def test_a_document_does_not_see_the_one_before_it() -> None:
    model = made(TINY)
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randint(0, 300, (2, 1, 40), generator=generator).unbind(0)
    other = torch.randint(0, 300, (1, 40), generator=generator)
    documents = torch.tensor([[0] * 40 + [1] * 40])
    with torch.no_grad():
        together = model(torch.cat((first, second), dim=1), documents=documents)[:, 40:]
        changed = model(torch.cat((other, second), dim=1), documents=documents)[:, 40:]
        alone = model(second)
        unmasked = model(torch.cat((first, second), dim=1))[:, 40:]
    assert torch.equal(together, changed)
    assert torch.allclose(together, alone, atol=1e-5)
    assert not torch.allclose(unmasked, alone, atol=1e-3)


def test_positions_start_again_in_each_document() -> None:
    documents = torch.tensor([[0, 0, 0, 1, 1, 2], [4, 4, 4, 4, 4, 4]])
    assert llama.document_positions(documents).tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]]


def test_rope_tables_are_float32_in_a_bfloat16_model() -> None:
    model = made(TINY).to(torch.bfloat16)
    context = model.context(8192, torch.device("cpu"), None)
    assert context.cos.dtype == torch.float32
    assert torch.equal(context.cos, made(TINY).context(8192, torch.device("cpu"), None).cos)


def test_initial_weights_depend_on_seed_and_name_alone() -> None:
    deep = made(dataclasses.replace(TINY, layers=5, depth_scaled_init=False)).state_dict()
    flat = made(dataclasses.replace(TINY, depth_scaled_init=False)).state_dict()
    assert all(torch.equal(deep[name], tensor) for name, tensor in flat.items())
    scaled = made(TINY).state_dict()["layers.0.mlp.down_proj.weight"]
    assert torch.allclose(scaled * 6**0.5, flat["layers.0.mlp.down_proj.weight"], rtol=1e-5)
    assert not torch.equal(made(TINY, seed=2).embed_tokens.weight, made(TINY).embed_tokens.weight)


DUAL = dataclasses.replace(TINY, architecture="dual_path", options={"deep_share": 0.25, "loops": 3})


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        dataclasses.replace(TINY, qk_norm=True, tied_embeddings=False),
        DUAL,
        dataclasses.replace(DUAL, options={"deep_share": 0.0}, qk_norm=True),
        dataclasses.replace(DUAL, options={"deep_share": 1.0, "loops": 2}),
    ],
)
def test_counted_parameters_are_those_of_the_module(config: LlamaConfig) -> None:
    model = made(config)
    assert architectures.counts_module(config).parameters(config) == sum(p.numel() for p in model.parameters())


def test_dual_path_gates_start_at_one_half_and_paths_are_mixed() -> None:
    block = made(DUAL).layers["0"].mlp
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0))
    state, total = x, torch.zeros_like(x)
    for _ in range(3):
        state = state + block.deep(block.loop_norm(state))
        total = total + state / 3
    assert torch.allclose(block(x), 0.5 * total + 0.5 * block.wide(x), atol=1e-6)
    assert torch.equal(block.deep_share(x), torch.full((2, 5), 0.5))


@pytest.mark.parametrize(
    ("budget", "share", "loops", "expected"), [(80e6, 0.0, 1, 716e6), (80e6, 0.5, 4, 476e6), (160e6, 0.0, 1, 1356e6)]
)
def test_dual_path_sizes_of_the_paper(budget: float, share: float, loops: int, expected: float) -> None:
    """80 M and 160 M feed-forward FLOPs per block and token, 2 per weight; 16 blocks, width 768, GPT-2's vocabulary."""
    config = LlamaConfig(
        dim=768, layers=16, heads=12, kv_heads=12, head_dim=64, ffn_dim=round(budget / 2 / (3 * 768)), vocab_size=50257,
        architecture="dual_path", options={"deep_share": share, "loops": loops},
    )  # fmt: skip
    assert dual_path_config.parameters(config) == pytest.approx(expected, rel=0.005)


def test_flops_of_the_reference_shape() -> None:
    config = LlamaConfig(dim=384, layers=8, heads=6, kv_heads=2, head_dim=64, ffn_dim=1024, vocab_size=16384)
    weights = llama_config.matmul_weights(config)
    assert weights == 8 * (384 * 64 * 16 + 3 * 384 * 1024) + 16384 * 384
    assert llama_config.flops_per_token(config, sequence_length=512) == 6 * weights + 6 * 8 * 384 * 512


@pytest.mark.parametrize("name", list(llama_config.PRESETS))
def test_every_preset_resolves(name: str) -> None:
    model = ModelConfig(preset=name).resolved()
    assert model.dim == model.heads * model.head_dim
    assert dataclasses.replace(ModelConfig(preset=name, layers=3).resolved(), layers=model.layers) == model


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{preset: 150}", "expected text, got 150"),
        ("{preset: big}", "model.preset: expected one of 4m"),
        ("{dim: 64}", "model.layers: missing"),
        ("{dim: 64, layers: 2, heads: 5}", "model.heads: expected a divisor of dim=64, got 5; take one of 1, 2, 4"),
        ("{dim: 64, layers: 2, heads: 4, kv_heads: 3}", "model.kv_heads: expected a divisor of heads=4, got 3"),
        ("{dim: 12, layers: 2, heads: 4}", "model.head_dim: expected an even width, got 3"),
        ("{dim: 64, layers: 2, heads: 4, kv_head: 2}", "did you mean 'kv_heads'"),
    ],
)
def test_bad_sizes_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(ModelConfig, parse(text, "run.yaml"), "model")
    assert message in str(error.value)
    assert "run.yaml:1" in str(error.value)
