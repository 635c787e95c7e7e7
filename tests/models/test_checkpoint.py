"""Checkpoints: whole or not there, hostile metadata runs nothing, another model's is refused."""

import dataclasses
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from modalities import checkpoint
from modalities.errors import StoreError
from modalities.models import llama
from modalities.models.initialisation import initialise
from modalities.models.llama_config import LlamaConfig

CONFIG = LlamaConfig(dim=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn_dim=64, vocab_size=97)


def progress(step: int = 7) -> checkpoint.Progress:
    return checkpoint.Progress(step=step, tokens_seen=step * 10, updates=step, model=CONFIG, numerics={"world_size": 1})


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    model = llama.build(CONFIG)
    initialise(model, CONFIG, seed=seed)
    found = {checkpoint.MODEL + name: p.detach() for name, p in model.named_parameters()}
    return {**found, "optimizer.half": torch.arange(6, dtype=torch.bfloat16).view(2, 3), "empty": torch.zeros(0)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    checkpoint.save(tmp_path / "a", tensors(), progress())
    return tmp_path / "a"


def test_round_trip(saved: Path) -> None:
    found = {name: torch.zeros_like(t) for name, t in tensors().items()}
    assert checkpoint.load(saved, found) == progress()
    assert all(torch.equal(found[name], t) for name, t in tensors().items())
    weights = checkpoint.load_weights(saved)
    assert set(weights.names("")) == set(found)
    assert all(torch.equal(weights.read(name, ""), t) for name, t in tensors().items())


def test_open_model_gives_the_same_logits(saved: Path, tmp_path: Path) -> None:
    config, model = checkpoint.open_model(saved)
    assert config == CONFIG
    original = llama.build(CONFIG)
    initialise(original, CONFIG, seed=0)
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(model(tokens), original(tokens))
    (tmp_path / "instance").mkdir()
    saved.rename(tmp_path / "instance" / "checkpoint")
    assert checkpoint.open_model(tmp_path / "instance")[0] == CONFIG


def test_digests_depend_on_contents_alone(saved: Path, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "b", tensors(), progress())
    checkpoint.save(tmp_path / "c", tensors(seed=1), progress())
    assert checkpoint.digests(saved) == checkpoint.digests(tmp_path / "b")
    assert checkpoint.digests(saved) != checkpoint.digests(tmp_path / "c")


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


def test_hostile_metadata_runs_nothing(saved: Path, tmp_path: Path) -> None:
    target = tmp_path / "pwned"
    data = pickle.dumps(Evil(target))
    path = saved / ".metadata"
    path.write_bytes(data)
    record = (saved / checkpoint.NAME).read_text()
    import json

    facts = json.loads(record)
    facts["files"][".metadata"] = len(data)
    (saved / checkpoint.NAME).write_text(json.dumps(facts))
    found = {name: torch.zeros_like(t) for name, t in tensors().items()}
    for attempt in (
        lambda: checkpoint.load(saved, found),
        lambda: checkpoint.Weights(saved),
        lambda: checkpoint.digests(saved),
    ):
        with pytest.raises(StoreError, match="does not belong into DCP metadata"):
            attempt()
    assert not target.exists()


@pytest.mark.parametrize("damage", ["truncate", "remove", "record"])
def test_incomplete_is_never_loaded(saved: Path, damage: str) -> None:
    data = next(saved.glob("*.distcp"))
    if damage == "truncate":
        data.write_bytes(data.read_bytes()[:-1])
    elif damage == "remove":
        data.unlink()
    else:
        (saved / checkpoint.NAME).unlink()
    assert checkpoint.newest(saved.parent) is None
    with pytest.raises(StoreError, match=r"expected \d+ bytes, got|missing"):
        checkpoint.Weights(saved)


def test_newest_by_step_inside_not_by_name(saved: Path, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "0-older-name", tensors(), progress(step=9))
    (tmp_path / "z.partial").mkdir()
    assert checkpoint.newest(tmp_path) == tmp_path / "0-older-name"
    checkpoint.prune(tmp_path, keep=1)
    assert not saved.exists() and (tmp_path / "0-older-name").exists()


def test_failed_save_leaves_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "write_json", fails)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(tmp_path / "a", tensors(), progress())
    monkeypatch.undo()
    assert checkpoint.newest(tmp_path) is None
    checkpoint.save(tmp_path / "a", tensors(), progress())
    assert checkpoint.newest(tmp_path) == tmp_path / "a"


def test_another_models_checkpoint_is_refused(saved: Path) -> None:
    wrong = {"model.norm.weight": torch.zeros(33)}
    with pytest.raises(StoreError, match=r"model.norm.weight: expected shape and type .*33.*, got .*32"):
        checkpoint.load(saved, wrong)
    with pytest.raises(StoreError, match=r"expected a tensor model\.nothing, got none"):
        checkpoint.load(saved, {"model.nothing": torch.zeros(1)})
    with pytest.raises(StoreError, match="got none"):
        checkpoint.Weights(saved).read("nothing")


def test_background_save_is_of_the_moment(tmp_path: Path) -> None:
    live = {name: t.clone() for name, t in tensors().items()}
    saving = checkpoint.save_in_background(tmp_path / "a", live, progress(), group=None)
    for tensor in live.values():
        tensor.zero_()
    assert not (tmp_path / "a").exists()
    saving.finish()
    weights = checkpoint.Weights(tmp_path / "a")
    assert all(torch.equal(weights.read(name, ""), t) for name, t in tensors().items())
    assert dataclasses.replace(weights.progress) == progress()
