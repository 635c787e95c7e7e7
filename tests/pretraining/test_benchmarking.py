"""Throughput studies: real ranks on made-up tokens, settings in the digest, out of memory as a result."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modalities import config
from modalities.errors import ConfigError, Invalid, OutOfMemoryError
from modalities.manifest import Manifest
from modalities.models.llama_config import ModelConfig
from modalities.pretraining import benchmarking, benchmarking_config
from modalities.pretraining.benchmarking_config import BenchmarkingConfig, BenchmarkingSection, machine, sections
from modalities.pretraining.config import PretrainingConfig
from modalities.work import Result, Upstream, Work, digest_of

LENGTH = 32


def training(**changes: Any) -> PretrainingConfig:
    model = ModelConfig(dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=64)
    given: dict[str, Any] = {"total_steps": 10, "global_batch_tokens": 8 * LENGTH, "learning_rate": 1e-3}
    return PretrainingConfig(model=model, **(given | changes))


def written(text: str) -> BenchmarkingConfig:
    return config.load(BenchmarkingConfig, config.parse(text, "mine.yaml"), "benchmarking")


@pytest.fixture
def measure(tmp_path: Path) -> Callable[[BenchmarkingSection], tuple[Path, Result]]:
    def run(section: BenchmarkingSection) -> tuple[Path, Result]:
        folder = tmp_path / section.name
        folder.mkdir()
        tokenizer = Manifest(
            node="tokenization.tokenizer", key="t", label="t", version=1, section={}, upstream={}, content="t",
            info={"vocab_size": 97},
        )  # fmt: skip
        work = Work(
            node=benchmarking_config.NODE,
            key=section.name,
            label=section.name,
            section=section,
            inputs={"tokenizer": Upstream(folder=tmp_path, manifest=tokenizer)},
            folder=folder,
            cache=tmp_path / "cache",
        )
        return folder, benchmarking.run(work)

    return run


def test_one_rank_and_two_ranks_are_measured(measure: Callable[[BenchmarkingSection], tuple[Path, Result]]) -> None:
    study = written("{settings: {one: {}, two: {world_size: 2, micro_batch: 2}}, steps: 3, warmup_steps: 1}")
    for section in sections(study, training(), LENGTH):
        folder, result = measure(section)
        info = result.info
        assert info["outcome"] == "measured"
        assert info["tokens_per_second"] > 0
        assert info["memory_bytes"] > 10_000_000
        assert info["setting"]["world_size"] == result.numerics["world_size"] == (1 if section.name == "one" else 2)
        steps = [json.loads(line)["step"] for line in (folder / "steps.jsonl").read_text().splitlines()]
        assert steps == [2, 3, 4]
        assert [p.name for p in folder.iterdir()] == ["steps.jsonl"], "no checkpoint and no state stays behind"
        assert result.content == digest_of(info)


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("pretraining: out of memory"),
        RuntimeError("a rank ended\nSignal 9 (SIGKILL) received by PID 7"),
    ],
)
def test_out_of_memory_is_a_result(
    measure: Callable[[BenchmarkingSection], tuple[Path, Result]], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(benchmarking, "train_in_ranks", fail)
    (section,) = sections(written("settings: {big: {}}"), training(), LENGTH)
    info = measure(section)[1].info
    assert info["outcome"] == "out of memory"
    assert "tokens_per_second" not in info


def test_other_errors_stay_errors(
    measure: Callable[[BenchmarkingSection], tuple[Path, Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a rank ended with exit code 1")

    monkeypatch.setattr(benchmarking, "train_in_ranks", fail)
    (section,) = sections(written("settings: {base: {}}"), training(), LENGTH)
    with pytest.raises(RuntimeError, match="exit code 1"):
        measure(section)


def test_numerics_and_device_are_what_the_digest_holds() -> None:
    def digests(text: str, **changes: Any) -> list[str]:
        return [digest_of(config.select(s, "result")) for s in sections(written(text), training(**changes), LENGTH)]

    first = digests("{settings: {a: {}, b: {micro_batch: 2}}, device: X}")
    assert len(set(first)) == 2
    assert digests("{settings: {other: {}}, device: X}") == first[:1], "a name is no result"
    assert digests("{settings: {a: {}}, device: Y}") != first[:1]
    assert digests("{settings: {a: {}}, device: X}", learning_rate=5e-3, total_steps=99, data_seed=4) == first[:1]
    assert sections(written("settings: {a: {}}"), training(), LENGTH)[0].device == machine() != ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{a: {world_sise: 2}}", "benchmarking.settings.a.world_sise: unknown key; did you mean 'world_size'"),
        ("{a: {world_size: 0}}", "benchmarking.settings.a.world_size: expected 1 or more, got 0"),
        ("{a: {}, b: {}}", "settings.b: expected settings that differ, got that of 'a' again"),
        ("{a: {micro_batch: 3}}", "settings.a.micro_batch: expected a divisor of the 8 sequences"),
        ("{a: {world_size: 3}}", "settings.a: expected 8 sequences to divide among 3"),
        ("{a: fast}", "settings.a: expected keys of pretraining.numerics, got 'fast'"),
        ("{}", "benchmarking.settings: expected at least one setting"),
        ("{'a/b': {}}", "expected names of letters"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: str, message: str) -> None:
    with pytest.raises((ConfigError, Invalid)) as caught:
        benchmarking_config.check(written(f"settings: {settings}"), training(), sequence_length=LENGTH, vocab_size=97)
    error = caught.value
    assert message in (f"{error.key}: {error.message}" if isinstance(error, Invalid) else str(error))
