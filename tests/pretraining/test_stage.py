"""The plan node on real packed shards: in this process, under torchrun, killed, told to stop, damaged."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modalities import manifest as manifests
from modalities.checkpoint import digests, open_model
from modalities.errors import ConfigError, DivergedError, InterruptedRunError, StoreError
from modalities.manifest import Manifest
from modalities.packing import config as packing_config
from modalities.packing import stage as packing
from modalities.pretraining import stage
from modalities.pretraining.config import NumericsConfig, SegmentSection
from modalities.tokens import ShardWriter
from modalities.work import Result, Upstream, Work

VOCABULARY, END, LENGTH = 97, 0, 24


def finished(folder: Path, node: str, result: Result, units: tuple[Upstream, ...] = ()) -> Upstream:
    manifest = Manifest(
        node=node, key=folder.name, label=node, version=1, section={}, upstream={},
        content=result.content, counts=result.counts, dropped=result.dropped, info=result.info, numerics=result.numerics,
    )  # fmt: skip
    manifests.write(folder, manifest)
    return Upstream(folder=folder, manifest=manifest, units=units)


def write_tokens(folder: Path, seed: int, documents: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(5, 90, documents)
    ids = [np.append(1 + (random.integers(90) + np.cumsum(random.integers(1, 4, n - 1))) % 96, END) for n in lengths]
    with ShardWriter(folder / "tokens", dtype=np.dtype("<u2"), end_of_document=END) as writer:
        writer.write(np.concatenate(ids), np.asarray(lengths))
        writer.finish()


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Upstream]:
    root = tmp_path_factory.mktemp("inputs")
    settings = packing_config.PackingConfig(sequence_length=LENGTH, max_epochs=1000.0)
    found: dict[str, Upstream] = {}
    packed: list[Upstream] = []
    for seed, source in enumerate(("help", "novels")):
        shard, made, whole = root / f"shard-{source}", root / f"packing-{source}", root / f"tokenization-{source}"
        for folder in (shard, made, whole):
            folder.mkdir()
        write_tokens(shard, seed, 40)
        unit = finished(shard, "tokenization", Result(content=f"shard-{source}"))
        work = work_of("packing", packing_config.unit_section(settings), {"tokenization": unit}, made)
        packed.append(finished(made, "packing", packing.run_unit(dataclasses.replace(work, unit={"source": source}))))
        found[f"tokenization:{source}"] = finished(whole, "tokenization", Result(content=source), (unit,))
    merged = root / "packing"
    merged.mkdir()
    work = work_of("packing", packing_config.section(settings, ("help", "novels")), found, merged)
    result = packing.gather(dataclasses.replace(work, own_units=tuple(packed)))
    found["packing"] = finished(merged, "packing", result, tuple(packed))
    return found | held_out(root)


def held_out(root: Path) -> dict[str, Upstream]:
    tokens, documents, tokenizer = root / "validation", root / "heldout", root / "tokenizer"
    for folder in (tokens, documents, tokenizer):
        folder.mkdir()
    write_tokens(tokens, 9, 12)
    table = pa.table({"source": ["help", "novels", "help"] * 4, "text_bytes": list(range(100, 112))})
    pq.write_table(table, documents / "documents.parquet")
    return {
        "validation": finished(tokens, "tokenization.heldout", Result(content="validation")),
        "heldout": finished(documents, "heldout", Result(content="heldout")),
        "tokenizer": finished(
            tokenizer, "tokenization.tokenizer", Result(content="t", info={"vocab_size": VOCABULARY})
        ),
    }


def work_of(node: str, section: Any, inputs: dict[str, Upstream], folder: Path, state: Path | None = None) -> Work[Any]:
    return Work(
        node=node, key=folder.name, label=node, section=section, inputs=inputs, folder=folder, cache=folder, state=state
    )


@pytest.fixture
def run(tmp_path: Path, inputs: dict[str, Upstream]) -> Callable[..., Upstream]:
    """Run the node as the job runner does: an attempt folder, a state folder that outlives it, then a manifest."""

    def attempt(name: str, section: SegmentSection, previous: Upstream | None = None, **others: Upstream) -> Upstream:
        folder, state = tmp_path / name / str(time.time_ns()), tmp_path / name / "state"
        folder.mkdir(parents=True)
        roles = inputs | others | ({"previous": previous} if previous is not None else {})
        work = work_of("pretraining", section, roles, folder, state)
        return finished(folder, "pretraining", stage.run(work))

    return attempt


def test_a_longer_training_than_packing_was_made_for_is_refused(
    inputs: dict[str, Upstream], section: SegmentSection
) -> None:
    from modalities.pretraining.rank import open_reader

    short = dataclasses.replace(section, sequence_length=LENGTH, max_epochs=2.0, end_step=1)
    open_reader(inputs, dataclasses.replace(short, planned_steps=1))
    with pytest.raises(ConfigError, match=r"packing\.max_epochs: expected"):
        open_reader(inputs, dataclasses.replace(short, planned_steps=100_000))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_segments_in_a_chain_equal_one_long_segment(section, run) -> None:
    whole = run("whole", section)
    first = run("first", dataclasses.replace(section, end_step=5))
    second = run("second", dataclasses.replace(section, start_step=5), first)
    assert second.content == whole.content
    assert second.manifest.info["tokens_seen"] == whole.manifest.info["tokens_seen"]
    steps = [x["step"] for x in lines(first.folder) + lines(second.folder) if "loss" in x]
    assert steps == list(range(1, 9))
    config, model = open_model(whole.folder)
    assert config.vocab_size == VOCABULARY
    assert sum(p.numel() for p in model.parameters()) == whole.manifest.info["parameters"]


def test_validation_is_the_same_for_any_number_of_ranks(section, run) -> None:
    one = run("one", section)
    two = run("two", dataclasses.replace(section, numerics=NumericsConfig(world_size=2, micro_batch=2)))
    assert set(one.manifest.info["validation"]) == {"help", "novels", "all"}
    for source, figures in one.manifest.info["validation"].items():
        other = two.manifest.info["validation"][source]
        assert (figures["bytes"], figures["tokens"]) == (other["bytes"], other["tokens"])
        assert figures["bits_per_byte"] == pytest.approx(other["bits_per_byte"], rel=1e-5)
    assert two.manifest.numerics["strategy"] == "ddp"
    for a, b in zip(lines(one.folder)[:8], lines(two.folder)[:8], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=2e-6)


def test_validation_counts_what_a_plain_loop_counts(section, run, inputs) -> None:
    import torch

    from modalities.tokens import Shard

    made = run("one", section)
    _, model = open_model(made.folder)
    shard = Shard(inputs["validation"].folder / "tokens")
    nats = 0.0
    for row in (1, 4, 7, 10):
        ids = torch.from_numpy(shard.document(row)[:-1].astype(np.int64))
        inputs_ = torch.cat((torch.tensor([END]), ids[:-1]))
        for start in range(0, len(ids), LENGTH):
            with torch.no_grad():
                logits = model(inputs_[None, start : start + LENGTH])[0]
            nats += float(torch.nn.functional.cross_entropy(logits, ids[start : start + LENGTH], reduction="sum"))
    expected = nats / np.log(2) / (101 + 104 + 107 + 110)
    assert made.manifest.info["validation"]["novels"]["bits_per_byte"] == pytest.approx(expected, rel=1e-5)


CHILD = """
import pickle, sys
from pathlib import Path
from modalities.pretraining import stage
stage.run(pickle.loads(Path(sys.argv[1]).read_bytes()))
"""


def start_child(tmp_path: Path, work: Work[Any]) -> subprocess.Popen[bytes]:
    (tmp_path / "work.pickle").write_bytes(__import__("pickle").dumps(dataclasses.replace(work, progress=None)))
    script = tmp_path / "child.py"
    script.write_text(
        CHILD.replace(
            "stage.run(", "import dataclasses\nfrom modalities.work import Progress\nstage.run(dataclasses.replace("
        ).replace("read_bytes()))", "read_bytes()), progress=Progress(None)))")
    )
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "work.pickle")], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


@pytest.mark.parametrize("world_size", [1, 2])
def test_kill_then_again_gives_the_same_weights(tmp_path, section, run, inputs, world_size) -> None:
    numerics = NumericsConfig(world_size=world_size, micro_batch=4)
    runtime = dataclasses.replace(section.runtime, checkpoint_every_steps=5)
    long = dataclasses.replace(section, end_step=400, numerics=numerics, runtime=runtime)
    state = tmp_path / "killed" / "state"
    folder = tmp_path / "killed" / "attempt-1"
    folder.mkdir(parents=True)
    child = start_child(tmp_path, work_of("pretraining", long, inputs, folder, state))
    wait_for(
        lambda: len(list((state / "checkpoints").glob("*[0-9]"))) > 1 if (state / "checkpoints").exists() else False
    )
    child.kill()
    child.wait()
    cut = (state / "metrics.jsonl").stat().st_size
    time.sleep(1.5)
    assert (state / "metrics.jsonl").stat().st_size == cut, "ranks outlived the process that started them"
    short = dataclasses.replace(long, end_step=lines(state)[-1]["step"] + 20)
    again = run("killed", short)
    assert again.manifest.info["resumed_at"] >= 5
    whole = run("whole", short)
    assert again.content == whole.content
    assert [x["loss"] for x in lines(again.folder)[:-1]] == [x["loss"] for x in lines(whole.folder)[:-1]]


@pytest.mark.parametrize("world_size", [1, 2])
def test_sigterm_saves_and_says_so(tmp_path, section, run, inputs, world_size) -> None:
    long = dataclasses.replace(section, end_step=100_000, numerics=NumericsConfig(world_size=world_size, micro_batch=4))
    state, folder = tmp_path / "stopped" / "state", tmp_path / "stopped" / "attempt-1"
    folder.mkdir(parents=True)
    child = start_child(tmp_path, work_of("pretraining", long, inputs, folder, state))
    wait_for(lambda: (state / "metrics.jsonl").exists() and (state / "metrics.jsonl").stat().st_size > 0)
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) != 0
    saved = lines(state)[-1]["step"]
    again = run("stopped", dataclasses.replace(long, end_step=saved + 3))
    assert again.manifest.info["resumed_at"] == saved


def test_error_of_a_rank_comes_back_as_its_class(section, run) -> None:
    hot = dataclasses.replace(section, learning_rate=1e30, clip=None, warmup_steps=0, end_step=50)
    with pytest.raises(DivergedError, match=r"lower pretraining\.learning_rate"):
        run("hot", dataclasses.replace(hot, numerics=NumericsConfig(world_size=2)))


def test_skip_policy_goes_on(section, run) -> None:
    hot = dataclasses.replace(section, learning_rate=1e30, clip=None, warmup_steps=0, nonfinite="skip")
    made = run("hot", hot)
    assert any(x.get("skipped") for x in lines(made.folder))


def test_stop_after_seconds(section, run) -> None:
    runtime = dataclasses.replace(section.runtime, stop_after_seconds=1e-6)
    with pytest.raises(InterruptedRunError, match="start it again"):
        run("late", dataclasses.replace(section, runtime=runtime))
    assert run("late", section).content == run("whole", section).content


def test_other_sequence_length_is_refused(section, run) -> None:
    with pytest.raises(StoreError, match=r"expected sequences of 48 tokens, got 24"):
        run("other", dataclasses.replace(section, sequence_length=48))


def test_tensorboard_events_are_written(section, run) -> None:
    made = run("board", dataclasses.replace(section, runtime=dataclasses.replace(section.runtime, tensorboard=True)))
    assert list((made.folder / "tensorboard").glob("events.out.tfevents.*"))


def test_damaged_resume_checkpoint_is_passed_over(tmp_path, section, run) -> None:
    runtime = dataclasses.replace(section.runtime, checkpoint_every_steps=2, asynchronous=False)
    run("damaged", dataclasses.replace(section, runtime=runtime, end_step=6))
    newest = max((tmp_path / "damaged" / "state" / "checkpoints").iterdir())
    data = next(newest.glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-10])
    again = run("damaged", section)
    assert again.manifest.info["resumed_at"] == 2
    assert digests(again.folder / "checkpoint") == digests(run("whole", section).folder / "checkpoint")
