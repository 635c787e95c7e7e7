"""The converted directory is the trained model, loads in stock transformers, and damage is noticed."""

import dataclasses
import json
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from modalities import checkpoint
from modalities.conversion import stage, verification
from modalities.conversion.generate import generate
from modalities.errors import ConfigError, InputError, StoreError
from modalities.models.llama_config import LlamaConfig
from modalities.work import Upstream

Make = Callable[..., Upstream]


@pytest.mark.parametrize(
    "changes", [{}, {"tied_embeddings": False}, {"qk_norm": True}, {"kv_heads": 4, "qk_norm": True}]
)
def test_stock_class_gives_the_trainers_logits(config: LlamaConfig, train: Make, convert_work, changes: dict) -> None:
    config = dataclasses.replace(config, **changes)
    trained = train(config)
    work = convert_work(trained)
    result = stage.run(work)
    _, ours = checkpoint.open_model(trained.folder)
    theirs = AutoModelForCausalLM.from_pretrained(work.folder, attn_implementation="sdpa", trust_remote_code=False)
    tokens = torch.randint(320, (3, 61), generator=torch.Generator().manual_seed(9))
    with torch.inference_mode():
        assert torch.equal(ours(tokens), theirs(tokens).logits)
    assert theirs.config.rope_parameters["rope_theta"] == 500_000
    assert result.info["class"] == ("Qwen3ForCausalLM" if config.qk_norm else "LlamaForCausalLM")
    assert result.info["verified"]["whole_model"]


def test_directory_is_complete(config: LlamaConfig, train: Make, convert_work) -> None:
    work = convert_work(train(config), licence="mit", notes="Made for a test.")
    stage.run(work)
    data = json.loads((work.folder / "config.json").read_text())
    assert data["rope_theta"] == data["rope_parameters"]["rope_theta"] == 500_000  # transformers 4 and 5
    tokenizer = AutoTokenizer.from_pretrained(work.folder)
    assert tokenizer.eos_token_id == data["eos_token_id"] == 0
    assert tokenizer.decode(tokenizer("a truth\nuniversally")["input_ids"]) == "a truth\nuniversally"
    card = (work.folder / "README.md").read_text()
    assert card.startswith("---\n") and "license: mit" in card and "Made for a test." in card
    assert "| novels | public domain | a \\| b |" in card
    assert str(work.folder) not in card and "key-of-pretraining" in card


def test_shards_hold_the_same_tensors_as_one_file(config: LlamaConfig, train: Make, convert_work) -> None:
    config = dataclasses.replace(config, vocab_size=4000, dim=96, head_dim=24)
    trained = train(config)
    one, many = convert_work(trained, name="one"), convert_work(trained, name="many", max_shard_bytes=1_000_000)
    assert stage.run(one).content == stage.run(many).content
    files = sorted(many.folder.glob("*.safetensors"))
    assert len(files) > 1 and not (one.folder / "model.safetensors.index.json").exists()
    index = json.loads((many.folder / "model.safetensors.index.json").read_text())
    whole = load_file(one.folder / "model.safetensors")
    parts = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert index["weight_map"].keys() == whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert index["metadata"]["total_size"] == sum(t.numel() * 4 for t in whole.values())
    assert all(parts[name].equal(load_file(many.folder / file)[name]) for name, file in index["weight_map"].items())
    AutoModelForCausalLM.from_pretrained(many.folder)


def test_bfloat16_rounds_and_verifies(config: LlamaConfig, train: Make, convert_work) -> None:
    trained = train(config)
    work = convert_work(trained, dtype="bfloat16")
    stage.run(work)
    written = load_file(work.folder / "model.safetensors")["model.embed_tokens.weight"]
    source = checkpoint.load_weights(trained.folder).read("embed_tokens.weight")
    assert written.dtype == torch.bfloat16 and torch.equal(written, source.bfloat16())
    assert AutoModelForCausalLM.from_pretrained(work.folder).dtype == torch.bfloat16


def test_same_input_gives_the_same_bytes(config: LlamaConfig, train: Make, convert_work) -> None:
    trained = train(config)
    first, second = convert_work(trained, name="first"), convert_work(trained, name="second")
    assert stage.run(first).content == stage.run(second).content
    for file in first.folder.iterdir():
        assert file.read_bytes() == (second.folder / file.name).read_bytes(), file.name


def test_content_follows_weights_and_config_not_the_card(config: LlamaConfig, train: Make, convert_work) -> None:
    trained = train(config)
    plain = stage.run(convert_work(trained, name="a")).content
    assert stage.run(convert_work(trained, name="b", notes="other words")).content == plain
    assert stage.run(convert_work(trained, name="c", dtype="bfloat16")).content != plain


def test_a_wrong_weight_fails_the_verification(config: LlamaConfig, train: Make, convert_work, monkeypatch) -> None:
    """A converter that swaps two layers of one shape writes a model that loads and computes nonsense."""
    work = convert_work(train(config))
    right = stage.ordered_shapes(config)
    swap = {"layers.0.mlp.up_proj.weight": "layers.0.mlp.gate_proj.weight"}
    real = checkpoint.Weights.read
    seen: list[str] = []

    def wrong(self: checkpoint.Weights, name: str) -> torch.Tensor:
        seen.append(name)
        return real(self, swap.get(name, name) if len(seen) <= len(right) else name)

    monkeypatch.setattr(checkpoint.Weights, "read", wrong)
    with pytest.raises(StoreError, match=r"layers\.0: expected outputs equal bit for bit"):
        stage.run(work)


def test_blocks_alone_find_a_wrong_norm(config: LlamaConfig, train: Make, convert_work, monkeypatch) -> None:
    monkeypatch.setattr(verification, "WHOLE_MODEL_BYTES", 0)
    work = convert_work(train(config))
    result = stage.run(work)
    assert not result.info["verified"]["whole_model"]
    weights = checkpoint.load_weights(work.inputs["pretraining"].folder)

    def read(name: str) -> torch.Tensor:
        tensor = weights.read(name)
        return tensor + 1e-6 if name == "layers.2.post_attention_layernorm.weight" else tensor

    with pytest.raises(StoreError, match=r"layers\.2"):
        verification.verify_forward(work.folder, config, read, dtype=torch.float32, sequence_length=64)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["missing", "truncated", "metadata"])
def test_damaged_checkpoint_is_named(config: LlamaConfig, train: Make, convert_work, damage: str) -> None:
    trained = train(config)
    file = next((trained.folder / "checkpoint").glob("*.distcp"))
    if damage == "metadata":
        file = trained.folder / "checkpoint" / ".metadata"
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-100])
    else:
        file.unlink()
    with pytest.raises(StoreError, match=file.name):
        stage.run(convert_work(trained))


def test_tokenizer_larger_than_the_embedding(config: LlamaConfig, train: Make, convert_work) -> None:
    trained = train(dataclasses.replace(config, vocab_size=290))
    with pytest.raises(InputError, match=r"vocab_size: expected at least the tokenizer's 300 ids, got 290"):
        stage.run(convert_work(trained))


def test_checkpoint_of_another_architecture_version(config: LlamaConfig, train: Make, convert_work) -> None:
    trained = train(config)
    path = trained.folder / "checkpoint" / checkpoint.NAME
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"model": data["model"] | {"qk_norm": True}}))
    with pytest.raises(
        StoreError, match=r"expected a tensor layers\.0\.self_attn\.k_norm\.weight, got none \(6 missing\)"
    ):
        stage.run(convert_work(trained))


def test_architecture_without_a_stock_class(config: LlamaConfig, train: Make, convert_work) -> None:
    trained = train(config)
    path = trained.folder / "checkpoint" / checkpoint.NAME
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"model": data["model"] | {"architecture": "dual_path"}}))
    with pytest.raises(InputError, match=r"model\.architecture: expected llama"):
        stage.run(convert_work(trained))


def test_nan_weights(config: LlamaConfig, train: Make, convert_work) -> None:
    trained = train(config)
    weights = checkpoint.load_weights(trained.folder)
    tensors = {checkpoint.MODEL + name: weights.read(name) for name in weights.names()}
    tensors["model.norm.weight"][0] = torch.nan
    other = dataclasses.replace(trained, folder=trained.folder.with_name("nan"))
    other.folder.mkdir()
    checkpoint.save(other.folder / "checkpoint", tensors, weights.progress)
    with pytest.raises(StoreError, match=r"norm: expected finite values"):
        stage.run(convert_work(other))


# --- generate --------------------------------------------------------------------------------------------------------


def test_generate_is_reproducible_and_greedy_is_argmax(config: LlamaConfig, train: Make, convert_work) -> None:
    trained = train(config)
    work = convert_work(trained)
    stage.run(work)
    first = generate(work.folder, prompt="It is a", tokens=8, seed=5, count=2)
    assert first == generate(work.folder, prompt="It is a", tokens=8, seed=5, count=2)
    assert first[1] == generate(work.folder, prompt="It is a", tokens=8, seed=6)[0] != first[0]
    _, model = checkpoint.open_model(trained.folder)
    tokenizer = AutoTokenizer.from_pretrained(work.folder)
    ids = [0, *tokenizer("It is a")["input_ids"]]
    start = len(ids)
    while len(ids) < start + 8 and (len(ids) == start or ids[-1] != 0):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    greedy = generate(work.folder, prompt="It is a", tokens=8, temperature=0)[0]
    assert greedy == tokenizer.decode(ids[start:], skip_special_tokens=True)


def test_generate_refuses(config: LlamaConfig, train: Make, convert_work, tmp_path) -> None:
    with pytest.raises(InputError, match=r"without config\.json"):
        generate(tmp_path, prompt="x")
    with pytest.raises(ConfigError, match="--top-p: expected a number above 0"):
        generate(tmp_path, prompt="x", top_p=0.0)
    work = convert_work(train(config))
    stage.run(work)
    with pytest.raises(InputError, match="expected fewer than 64 tokens"):
        generate(work.folder, prompt="word " * 100)
