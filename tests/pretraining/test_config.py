"""Segments share what they can and nothing else; impossible combinations are named; the schedule is a function of the step."""

import dataclasses
import itertools
import subprocess
import sys
from typing import Any

import pytest

from modalities.config import build, load, parse, plain, select
from modalities.errors import ConfigError, Invalid
from modalities.pretraining import config as c
from modalities.pretraining.schedule import rate

BASE = "model: {dim: 64, layers: 2, heads: 4}\nglobal_batch_tokens: 1024\nlearning_rate: 3e-3\n"
WSD = "schedule: {name: wsd, warmup_steps: 10, decay_steps: 20, min_ratio: 0.0}\nevaluate_every: 30\n"


def made(text: str) -> c.PretrainingConfig:
    return load(c.PretrainingConfig, parse(text, "run.yaml"), "pretraining")


def keys(text: str) -> list[Any]:
    return [select(segment, "result") for segment in c.segments(made(BASE + text), 128)]


def test_longer_wsd_shares_its_trunk() -> None:
    short, long = keys(WSD + "total_steps: 100"), keys(WSD + "total_steps: 200")
    assert [(s["start_step"], s["end_step"]) for s in short] == [(0, 30), (30, 60), (60, 80), (80, 90), (90, 100)]
    assert long[:2] == short[:2]
    assert long[2]["start_step"] == 60 and long[2]["end_step"] == 90
    assert all(s["decay"] is None for s in short[:3]) and all(s["decay"] is not None for s in short[3:])


def test_branches_of_a_trunk_differ_only_after_it() -> None:
    linear = keys(WSD + "total_steps: 100")
    other = keys(WSD.replace("min_ratio: 0.0", "min_ratio: 0.0, decay_shape: minus_sqrt") + "total_steps: 100")
    assert linear[:3] == other[:3] and linear[3] != other[3]


def test_a_cosine_knows_its_end() -> None:
    text = "schedule: {warmup_steps: 10}\nevaluate_every: 30\n"
    assert keys(text + "total_steps: 100")[0] != keys(text + "total_steps: 200")[0]


def test_numerics_and_runtime_are_in_no_digest() -> None:
    text = "total_steps: 100\nnumerics: {world_size: 2, threads_per_rank: 3}\nruntime: {log_every: 7}\n"
    assert keys(text) == keys("total_steps: 100")


def test_a_preset_and_its_numbers_are_the_same_model() -> None:
    preset = made("model: {preset: 4m}")
    numbers = made(
        "model: {dim: 64, layers: 8, heads: 8, ffn_dim: 256, tied_embeddings: false}\n"
        "total_tokens: 400_000_000\nglobal_batch_tokens: 65536\nlearning_rate: 0.014\n"
    )
    assert c.segments(preset, 2048) == c.segments(numbers, 2048)
    assert c.total_steps(preset, 2048) == 6104


def test_sections_survive_the_plan_file() -> None:
    for segment in c.segments(made(BASE + WSD + "total_steps: 100"), 128):
        assert build(c.SegmentSection, plain(segment)) == segment


@pytest.mark.parametrize(("name", "last"), [("cosine", 0.1), ("linear", 0.1), ("wsd", 0.1), ("constant", 1.0)])
def test_schedule(name: str, last: float) -> None:
    segments = c.segments(
        made(BASE + f"schedule: {{name: {name}, warmup_steps: 10}}\ntotal_steps: 100\nevaluate_every: 50"), 128
    )
    rates = {s: rate(segment, s) / 3e-3 for segment in segments for s in range(segment.start_step, segment.end_step)}
    assert list(rates) == list(range(100))
    assert rates[0] == pytest.approx(0.1) and rates[9] == pytest.approx(1.0)
    assert rates[99] == pytest.approx(last)
    after = [rates[s] for s in range(9, 100)]
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(after))
    if name == "wsd":
        assert rates[79] == pytest.approx(1.0) and rates[89] == pytest.approx(0.55)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "total_steps: 10\ntotal_tokens: 10",
            "pretraining.total_tokens: expected total_steps or total_tokens, got both",
        ),
        ("", "pretraining.total_steps: missing"),
        ("total_steps: 0", "pretraining.total_steps: expected 1 or more, got 0"),
        ("total_steps: 5\nclip: -1", "pretraining.clip: expected a finite number above 0"),
        ("total_steps: 5\noptimizer: {betas: [0.9]}", "pretraining.optimizer.betas: expected two numbers"),
        (
            "total_steps: 5\nschedule: {decay_steps: 3}",
            "pretraining.schedule.decay_steps: expected it only with name: wsd",
        ),
        ("total_steps: 5\nlearning_rat: 1", "did you mean 'learning_rate'"),
        (
            "total_steps: 5\nnumerics: {world_size: 3, layout: {tensor: 2}}",
            "numerics.layout.tensor: expected a divisor",
        ),
        (
            "total_steps: 5\nnumerics: {world_size: 4, layout: {replicate: 3}}",
            "numerics.layout.replicate: expected a divisor",
        ),
        ("total_steps: 5\nnumerics: {micro_batch: 0}", "numerics.micro_batch: expected 1 or more"),
    ],
)
def test_bad_values_name_file_line_and_key(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        made(BASE + text)
    assert message in str(error.value) and "run.yaml:" in str(error.value)


@pytest.mark.parametrize(
    ("text", "length", "key", "message"),
    [
        ("", 100, "global_batch_tokens", "expected a multiple of packing.sequence_length=100, got 1024; take 1000"),
        ("numerics: {world_size: 3}", 128, "global_batch_tokens", "among 3 data-parallel ranks"),
        ("numerics: {micro_batch: 3}", 128, "numerics.micro_batch", "expected a divisor of the 8 sequences"),
        ("evaluation_steps: [60]", 128, "evaluation_steps", "expected steps from 1 to 50"),
        ("schedule: {name: wsd, warmup_steps: 45}", 128, "schedule.warmup_steps", "before the decay starts at step 40"),
        ("numerics: {world_size: 8, layout: {tensor: 8}}", 128, "numerics.layout.tensor", "model.kv_heads=4"),
        (
            "numerics: {world_size: 2, precision: bfloat16, layout: {strategy: ddp}}",
            128,
            "numerics.layout.strategy",
            "fsdp",
        ),
    ],
)
def test_check_names_what_does_not_fit(text: str, length: int, key: str, message: str) -> None:
    with pytest.raises(Invalid) as error:
        c.check(made(BASE + "total_steps: 50\n" + text), sequence_length=length)
    assert error.value.key == key and message in error.value.message


def test_check_of_vocabulary_and_architecture() -> None:
    small = made((BASE + "total_steps: 50").replace("heads: 4", "heads: 4, vocab_size: 200"))
    with pytest.raises(Invalid, match="at least the tokenizer's 300 ids, got 200"):
        c.check(small, sequence_length=128, vocab_size=300)
    unknown = made((BASE + "total_steps: 50").replace("heads: 4", "heads: 4, architecture: no_such.module"))
    with pytest.raises(Invalid, match=r"model.architecture: expected llama, dual_path"):
        c.check(unknown, sequence_length=128)
    looped = made(
        (BASE + "total_steps: 50").replace("heads: 4", "heads: 4, architecture: dual_path, options: {loop: 3}")
    )
    with pytest.raises(Invalid, match="did you mean 'loops'"):
        c.check(looped, sequence_length=128)


def test_plan_side_imports_no_torch() -> None:
    code = "import sys, modalities.pretraining.config as c, modalities.models.dual_path_config; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_parameters_and_flops_of_the_plan() -> None:
    config = made(BASE + "total_steps: 5")
    assert c.parameters(config, 300) == c.parameters(dataclasses.replace(config, total_steps=9), 300) == 126_016
    assert c.flops_per_token(config, 300, 128) > 6 * 100_000
