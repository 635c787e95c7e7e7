"""Every layout trains what one rank trains: losses to 2e-6, gradient norms to 2e-5, the same batches and weights."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modalities.checkpoint import Weights, digests
from modalities.pretraining.config import LayoutConfig, NumericsConfig, SegmentSection


def lay_out(section: SegmentSection, world_size: int, **keys: Any) -> SegmentSection:
    numerics = {k: keys.pop(k) for k in list(keys) if k in {f.name for f in dataclasses.fields(NumericsConfig)}}
    layout = LayoutConfig(**keys)
    return dataclasses.replace(
        section,
        numerics=dataclasses.replace(section.numerics, world_size=world_size, layout=layout, **numerics),
    )


def trace(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "state" / "metrics.jsonl").read_text().splitlines()]


def run(pools: Any, section: SegmentSection, folder: Path, **keys: Any) -> list[dict[str, Any]]:
    (folder / "state").mkdir(parents=True, exist_ok=True)
    pools(section.numerics.world_size).call("train", section=section, folder=folder, **keys)
    return trace(folder)


def assert_close(got: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert [x["step"] for x in got] == [x["step"] for x in wanted]
    for a, b in zip(got, wanted, strict=True):
        assert a["tokens"] == b["tokens"]
        assert a["loss"] == pytest.approx(b["loss"], abs=2e-6)
        assert a["loss_by_source"] == pytest.approx(b["loss_by_source"], abs=3e-6)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=2e-5)


LAYOUTS = [
    (2, {"strategy": "ddp"}),
    (2, {"strategy": "fsdp"}),
    (2, {"strategy": "fsdp", "reshard_after_forward": False, "activation_checkpointing": "full"}),
    (2, {"strategy": "fsdp", "activation_checkpointing": "operations"}),
    (2, {"strategy": "fsdp", "cpu_offload": True}),
    (2, {"tensor": 2}),
    (4, {"strategy": "ddp"}),
    (4, {"strategy": "fsdp"}),
    (4, {"strategy": "fsdp", "replicate": 2}),
    (4, {"tensor": 2}),
]
MODELS = {
    "plain": {},
    "untied, qk_norm": {"tied_embeddings": False, "qk_norm": True},
}


@pytest.mark.parametrize(("world_size", "keys"), LAYOUTS, ids=str)
def test_layout_equals_one_rank(tmp_path, pools, section, world_size, keys) -> None:
    for name, model in MODELS.items():
        own = dataclasses.replace(section, model=dataclasses.replace(section.model, **model))
        wanted = run(pools, lay_out(own, 1), tmp_path / name / "one")
        got = run(pools, lay_out(own, world_size, **keys), tmp_path / name / "many")
        assert_close(got, wanted)


@pytest.mark.parametrize("keys", [{"strategy": "ddp"}, {"strategy": "fsdp"}, {"tensor": 2}], ids=str)
def test_document_mask_and_z_loss(tmp_path, pools, section, keys) -> None:
    own = dataclasses.replace(section, document_mask=True, z_loss=1e-2)
    wanted = run(pools, lay_out(own, 1), tmp_path / "one")
    assert_close(run(pools, lay_out(own, 2, **keys), tmp_path / "many"), wanted)
    plain = run(pools, lay_out(section, 1), tmp_path / "plain")
    assert abs(plain[0]["loss"] - wanted[0]["loss"]) > 1e-4


@pytest.mark.parametrize(
    ("world_size", "keys"),
    [(2, {"strategy": "ddp"}), (2, {"strategy": "fsdp"}), (4, {"strategy": "ddp"}), (4, {"strategy": "fsdp"})],
    ids=str,
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_resume_is_bit_identical(tmp_path, pools, section, world_size, keys, asynchronous) -> None:
    own = lay_out(
        dataclasses.replace(section, runtime=dataclasses.replace(section.runtime, asynchronous=asynchronous)),
        world_size,
        **keys,
    )
    wanted = run(pools, own, tmp_path / "whole")
    run(pools, own, tmp_path / "cut", stop_at=3)
    assert len(trace(tmp_path / "cut")) == 3
    (tmp_path / "cut" / "state" / "stop").unlink()
    got = run(pools, own, tmp_path / "cut")
    exact = ("step", "loss", "grad_norm", "learning_rate", "tokens")
    assert [[x[k] for k in exact] for x in got] == [[x[k] for k in exact] for x in wanted]
    assert digests(tmp_path / "cut" / "checkpoint") == digests(tmp_path / "whole" / "checkpoint")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, {"strategy": "fsdp"}), (1, {})),
        ((1, {}), (2, {"tensor": 2})),
        ((2, {"strategy": "ddp"}), (4, {"strategy": "fsdp", "replicate": 2})),
        ((4, {"tensor": 2}), (2, {"strategy": "fsdp"})),
    ],
    ids=str,
)
def test_resume_in_another_layout(tmp_path, pools, section, before, after) -> None:
    wanted = run(pools, lay_out(section, 1), tmp_path / "whole")
    run(pools, lay_out(section, before[0], **before[1]), tmp_path / "cut", stop_at=3)
    (tmp_path / "cut" / "state" / "stop").unlink()
    assert_close(run(pools, lay_out(section, after[0], **after[1]), tmp_path / "cut"), wanted)


@pytest.mark.parametrize(
    ("world_size", "keys"), [(2, {"strategy": "fsdp"}), (2, {"tensor": 2}), (4, {"tensor": 2})], ids=str
)
def test_initial_weights_names_and_tie_survive_wrapping(pools, section, world_size, keys) -> None:
    one = pools(1).call("state_after_wrapping", section=lay_out(section, 1))[0]
    for rank in pools(world_size).call("state_after_wrapping", section=lay_out(section, world_size, **keys)):
        assert rank["names"] == one["names"]
        assert rank["tied"]
        for name, weight in rank["weights"].items():
            assert np.array_equal(weight, one["weights"][name]), name


def test_checkpoint_of_shards_reads_without_ranks(tmp_path, pools, section) -> None:
    run(pools, lay_out(section, 2, strategy="fsdp"), tmp_path / "many")
    weights = Weights(tmp_path / "many" / "checkpoint")
    assert weights.progress.step == 6
    assert weights.read("embed_tokens.weight").shape == (97, 32)
    assert weights.names()[:1] == ["embed_tokens.weight"]


def test_not_finite_stops_all_ranks(tmp_path, pools, section) -> None:
    hot = dataclasses.replace(section, learning_rate=1e30, clip=None, warmup_steps=0, end_step=50)
    (tmp_path / "hot" / "state").mkdir(parents=True)
    answers = pools(2).call("train", section=lay_out(hot, 2, strategy="fsdp"), folder=tmp_path / "hot")
    assert [a["error"] for a in answers] == ["DivergedError"] * 2
    assert json.loads((tmp_path / "hot" / "state" / "diverged.json").read_text())["gradients"]
    assert not (tmp_path / "hot" / "checkpoint").exists()
