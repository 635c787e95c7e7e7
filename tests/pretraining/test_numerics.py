"""Loss, optimizer and numerics keys against the plain computation."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from modalities.checkpoint import digests
from modalities.pretraining.config import NumericsConfig, OptimizerConfig
from modalities.pretraining.loss import IGNORED, TokenLoss
from modalities.pretraining.optimizer import Optimizer


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "state" / "metrics.jsonl").read_text().splitlines()]
    return [x["loss"] for x in lines if "loss" in x]


@pytest.mark.parametrize("z_loss", [None, 1e-2])
@pytest.mark.parametrize("piece_tokens", [1, 7, 64])
@pytest.mark.parametrize("method", ["pieces", "plain"])
def test_loss_and_gradients_equal_the_plain_computation(method: Any, piece_tokens: int, z_loss: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 10, 16, generator=generator, requires_grad=True)
    head = nn.Linear(16, 50, bias=False)
    targets = torch.randint(0, 50, (2, 10), generator=generator)
    targets[0, 3:6] = IGNORED
    logits = head(hidden).flatten(0, 1)
    each = F.cross_entropy(logits, targets.flatten(), reduction="none")
    expected = 0.25 * each.sum()
    if z_loss is not None:
        expected = expected + 0.25 * z_loss * logits.logsumexp(1)[targets.flatten() != IGNORED].square().sum()
    wanted = torch.autograd.grad(expected, (hidden, head.weight))
    loss = TokenLoss(targets, scale=0.25, method=method, piece_tokens=piece_tokens, z_loss=z_loss)
    total = loss(hidden, head)
    got = torch.autograd.grad(total, (hidden, head.weight))
    assert loss.losses is not None
    assert torch.allclose(total, expected, rtol=1e-6)
    assert torch.allclose(loss.losses, each, atol=1e-6)
    for a, b in zip(got, wanted, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
        assert a.abs().sum() > 0


def test_loss_of_a_micro_batch_without_a_token_that_counts() -> None:
    head = nn.Linear(8, 20, bias=False)
    loss = TokenLoss(torch.full((1, 4), IGNORED), scale=1.0, method="pieces", piece_tokens=2, z_loss=1e-3)
    total = loss(torch.randn(1, 4, 8, requires_grad=True), head)
    total.backward()
    assert total.item() == 0.0
    assert head.weight.grad is not None and head.weight.grad.abs().sum() == 0


def test_adamw_is_torchs_with_no_decay_on_vectors() -> None:
    ours = nn.Sequential(nn.Linear(4, 3), nn.RMSNorm(3))
    theirs = nn.Sequential(nn.Linear(4, 3), nn.RMSNorm(3))
    theirs.load_state_dict(ours.state_dict())
    optimizer = Optimizer(ours, OptimizerConfig(weight_decay=0.5))
    decayed, rest = [theirs[0].weight], [theirs[0].bias, theirs[1].weight]
    peer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.5}, {"params": rest, "weight_decay": 0.0}], betas=(0.9, 0.95), fused=True
    )
    for step in range(3):
        x = torch.full((2, 4), float(step + 1))
        ours(x).square().sum().backward()
        theirs(x).square().sum().backward()
        optimizer.step(0.01 * (step + 1))
        for group in peer.param_groups:
            group["lr"] = 0.01 * (step + 1)
        peer.step()
        peer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert optimizer.updates() == 3
    assert all(p.grad is None for p in ours.parameters())


@pytest.mark.parametrize("kind", ["full", "operations"])
def test_activation_checkpointing_is_bit_identical(tmp_path, section, run_segment, kind) -> None:
    run_segment("plain", section)
    numerics = dataclasses.replace(section.numerics, activation_checkpointing=kind)
    run_segment("again", dataclasses.replace(section, numerics=numerics))
    assert digests(tmp_path / "plain" / "checkpoint") == digests(tmp_path / "again" / "checkpoint")


def test_every_second_block_can_be_checkpointed(tmp_path, section, run_segment) -> None:
    run_segment("plain", section)
    numerics = dataclasses.replace(section.numerics, activation_checkpointing="full", checkpoint_every_blocks=2)
    run_segment("again", dataclasses.replace(section, numerics=numerics))
    assert digests(tmp_path / "plain" / "checkpoint") == digests(tmp_path / "again" / "checkpoint")


def test_muon_trains_and_resumes_exactly(tmp_path, section, run_segment) -> None:
    own = dataclasses.replace(section, optimizer=OptimizerConfig(name="muon"))
    run_segment("whole", own)
    run_segment("cut", dataclasses.replace(own, end_step=4))
    (tmp_path / "cut" / "checkpoint").rename(tmp_path / "cut" / "state" / "checkpoints")
    checkpoint = tmp_path / "cut" / "state" / "checkpoints"
    inside = checkpoint.with_name("inside")
    checkpoint.rename(inside)
    checkpoint.mkdir()
    inside.rename(checkpoint / "one")
    run_segment("cut", own)
    found = digests(tmp_path / "whole" / "checkpoint")
    assert found == digests(tmp_path / "cut" / "checkpoint")
    assert "optimizer.layers.0.mlp.up_proj.weight.momentum_buffer" in found
    assert "optimizer.embed_tokens.weight.exp_avg" in found
    assert losses(tmp_path / "whole")[-1] < losses(tmp_path / "whole")[0]


def test_dual_path_trains_through_the_same_trainer(tmp_path, section, run_segment) -> None:
    model = dataclasses.replace(section.model, architecture="dual_path", options={"deep_share": 0.5, "loops": 2})
    info = run_segment("dual", dataclasses.replace(section, model=model))["info"]
    assert losses(tmp_path / "dual")[-1] < losses(tmp_path / "dual")[0] - 0.2
    assert math.isfinite(info["final_loss"])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["blocks", "model"])
def test_compiled_is_close_and_names_stay_clean(tmp_path, section, run_segment, what) -> None:
    run_segment("plain", section)
    numerics = NumericsConfig(micro_batch=4, compile=what)
    run_segment("compiled", dataclasses.replace(section, numerics=numerics))
    for a, b in zip(losses(tmp_path / "plain"), losses(tmp_path / "compiled"), strict=True):
        assert a == pytest.approx(b, abs=2e-6)
    assert list(digests(tmp_path / "plain" / "checkpoint")) == list(digests(tmp_path / "compiled" / "checkpoint"))


@pytest.mark.parametrize(
    ("text", "kind", "key"),
    [
        (
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory: you tried 9 bytes",
            "OutOfMemoryError",
            "micro_batch",
        ),
        ("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 600000ms for recv", "HungError", "600 seconds"),
        ("anything else", "RuntimeError", "anything"),
    ],
)
def test_errors_of_torch_get_their_class(section, text: str, kind: str, key: str) -> None:
    from modalities.pretraining.rank import classified

    error = classified(RuntimeError(text), section)
    assert type(error).__name__ == kind and key in str(error)
