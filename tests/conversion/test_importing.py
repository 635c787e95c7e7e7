"""A Hugging Face model becomes our checkpoint and comes back with the same bytes."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig as TheirLlama
from transformers import LlamaForCausalLM, Qwen3ForCausalLM
from transformers import Qwen3Config as TheirQwen3

from modalities import checkpoint
from modalities.conversion import stage
from modalities.conversion.importing import import_model
from modalities.errors import InputError, StoreError
from modalities.work import Upstream

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "vocab_size": 320,
    "max_position_embeddings": 64,
}


def save_theirs(folder: Path, kind: str, *, tied: bool, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """Write a model with random weights as transformers does."""
    torch.manual_seed(4)
    rope = {"rope_type": "default", "rope_theta": 250_000.0}
    config_class, model_class = (TheirLlama, LlamaForCausalLM) if kind == "llama" else (TheirQwen3, Qwen3ForCausalLM)
    model = model_class(config_class(**SIZES, tie_word_embeddings=tied, rope_parameters=rope)).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(("kind", "tied"), [("llama", True), ("llama", False), ("qwen3", False), ("qwen3", True)])
def test_logits_are_equal(tmp_path: Path, kind: str, tied: bool) -> None:
    theirs = save_theirs(tmp_path / "hf", kind, tied=tied)
    import_model(tmp_path / "hf", target=tmp_path / "ours")
    config, ours = checkpoint.open_model(tmp_path / "ours")
    assert config.qk_norm == (kind == "qwen3") and config.rope_base == 250_000
    tokens = torch.randint(320, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(ours(tokens), theirs(tokens).logits)


@pytest.mark.parametrize(("kind", "dtype"), [("llama", torch.float32), ("qwen3", torch.bfloat16)])
def test_there_and_back_is_byte_identical(
    tmp_path: Path, kind: str, dtype: torch.dtype, convert_work: Callable, tokenizer: Upstream
) -> None:
    save_theirs(tmp_path / "hf", kind, tied=False, dtype=dtype)
    import_model(tmp_path / "hf", target=tmp_path / "instance" / "checkpoint")
    manifest = dataclasses.replace(tokenizer.manifest, node="pretraining", info={"sequence_length": 64})
    trained = dataclasses.replace(tokenizer, folder=tmp_path / "instance", manifest=manifest)
    work = convert_work(trained, dtype=str(dtype).removeprefix("torch."))
    stage.run(work)
    before, after = load_file(tmp_path / "hf" / "model.safetensors"), load_file(work.folder / "model.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype and torch.equal(
            tensor.view(torch.uint8), after[name].view(torch.uint8)
        ), name


def test_dtype_can_be_kept(tmp_path: Path) -> None:
    save_theirs(tmp_path / "hf", "llama", tied=True, dtype=torch.bfloat16)
    import_model(tmp_path / "hf", target=tmp_path / "ours", dtype=None)
    assert checkpoint.load_weights(tmp_path / "ours").entry("norm.weight")[1] == torch.bfloat16


# --- bad input -------------------------------------------------------------------------------------------------------


def edit(folder: Path, **changes: object) -> None:
    """Change keys of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type: expected llama or qwen3, got 'gpt2'"),
        ({"attention_bias": True}, "attention_bias: expected False, got True"),
        ({"hidden_act": "gelu"}, "hidden_act: expected 'silu', got 'gelu'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}, "rope_type: expected default, got 'llama3'"),
        ({"rope_theta": 10_000.0}, r"rope_theta: expected one base, got \[10000.0, 250000.0\]"),
        ({"intermediate_size": 96}, r"gate_proj.weight: expected shape \(96, 48\) as config.json says, got \(80, 48\)"),
        ({"num_hidden_layers": 1}, r"model\.layers\.1\.\S+: expected no such tensor"),
        ({"num_hidden_layers": 3}, r"model\.layers\.2\.\S+: expected a tensor of shape \(48,\), got none"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, changes: dict, message: str) -> None:
    save_theirs(tmp_path / "hf", "llama", tied=False)
    edit(tmp_path / "hf", **changes)
    with pytest.raises(InputError, match=message):
        import_model(tmp_path / "hf", target=tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_damaged_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json: missing"):
        import_model(tmp_path, target=tmp_path / "ours")
    save_theirs(tmp_path / "hf", "llama", tied=False)
    file = tmp_path / "hf" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"model\.safetensors: expected a safetensors file"):
        import_model(tmp_path / "hf", target=tmp_path / "ours")
    save_file({"x": torch.zeros(1)}, file)
    with pytest.raises(InputError, match="x: expected no such tensor"):
        import_model(tmp_path / "hf", target=tmp_path / "ours")
    with pytest.raises(StoreError, match="expected nothing there yet"):
        import_model(tmp_path / "hf", target=tmp_path / "hf")
