"""Baselines: xz as the command line tool has it, and a bigram that is a distribution and learns."""

import itertools
import lzma
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from modalities.errors import InputError
from modalities.evaluation.baselines import compressed_bits, fit_bigram, run, training_chunks
from modalities.evaluation.config import BaselinesSection
from modalities.evaluation.texts import Document, open_tokenizer, read_documents
from modalities.tokens import ShardWriter


@pytest.fixture
def make_shards(tmp_path: Path, tokenizer, make_upstream):
    """Return a function that tokenizes texts into the units of a source, two texts a unit."""
    encode = open_tokenizer(tokenizer).encode

    def make(source: str, texts: list[str]):
        units = []
        for number in range(0, len(texts), 2):
            folder = tmp_path / source / str(number)
            folder.mkdir(parents=True)
            with ShardWriter(folder / "tokens", dtype=np.dtype("<u2")) as writer:
                for ids in encode(texts[number : number + 2]):
                    writer.write(np.append(ids, 0), np.array([len(ids) + 1]))
                writer.finish()
            units.append(make_upstream(folder, "tokenization", {}))
        return make_upstream(tmp_path / source, "tokenization", {}, tuple(units))

    return make


@pytest.fixture
def inputs(tokenizer, heldout, make_shards, make_text) -> dict:
    """Two sources with training tokens."""
    shards = {
        f"tokenization:{s}": make_shards(s, [make_text(s, n, 200) for n in range(50, 56)]) for s in ("birds", "ships")
    }
    return {"heldout": heldout, "tokenizer": tokenizer, **shards}


def test_xz_is_as_large_as_the_tool_makes_it(tmp_path: Path, make_text) -> None:
    documents = [Document(source="s", id=str(n), text=make_text("birds", n, 80), language=None) for n in range(5)]
    data = "".join(document.text for document in documents).encode()
    found = compressed_bits(documents)
    assert found["bytes"] == len(data)
    assert found["bits"] == 8 * len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    if shutil.which("xz"):
        done = subprocess.run(["xz", "-9e", "--stdout"], input=data, capture_output=True, check=True)
        assert found["bits"] == 8 * len(done.stdout)


def test_bigram_is_a_distribution_and_agrees_with_a_plain_count(make_shards, make_text) -> None:
    source = make_shards("birds", [make_text("birds", n, 120) for n in range(4)])
    bigram = fit_bigram(training_chunks([source], 10**9), num_ids=300)
    for before in (0, 5, 77, 290):
        row_bits = np.array([bigram.bits(np.array([before, after])) for after in range(300)])
        assert np.exp2(-row_bits).sum() == pytest.approx(1)
    tokens = np.concatenate([np.fromfile(u.folder / "tokens.bin", np.uint16) for u in source.units]).astype(int)
    stream = [np.fromfile(u.folder / "tokens.bin", np.uint16).astype(int) for u in source.units]
    pairs: dict[tuple[int, int], int] = {}
    for shard in stream:
        for pair in itertools.pairwise(shard):
            pairs[pair] = pairs.get(pair, 0) + 1
    assert bigram.counts.pair_counts.sum() == sum(pairs.values())
    (v, w), times = max(pairs.items(), key=lambda item: item[1])
    context = sum(count for pair, count in pairs.items() if pair[0] == v)
    total = sum(pairs.values())
    unigram = sum(count for pair, count in pairs.items() if pair[1] == w) / total
    a, b, c = bigram.weights[math.ceil(math.log2(context + 1))]
    expected = a * times / context + b * unigram + c / 300
    assert bigram.bits(np.array([v, w])) == pytest.approx(-math.log2(expected))
    assert len(tokens) > 500 and a + b + c == pytest.approx(1)


def test_more_training_text_and_the_right_text_help(make_shards, make_text, tokenizer) -> None:
    birds = make_shards("birds", [make_text("birds", n, 200) for n in range(10)])
    row = np.concatenate(([0], open_tokenizer(tokenizer).encode([make_text("birds", 60, 100)])[0]))
    other = np.concatenate(([0], open_tokenizer(tokenizer).encode([make_text("ships", 60, 100)])[0]))

    def bits(tokens: int, scored: np.ndarray) -> float:
        return fit_bigram(training_chunks([birds], tokens), num_ids=300).bits(scored) / (len(scored) - 1)

    assert bits(10**9, row) < bits(200, row) < bits(0, row) == pytest.approx(math.log2(300))
    assert bits(10**9, row) < bits(10**9, other)


def test_chunks_hold_every_pair_of_a_shard_once(make_shards, make_text) -> None:
    source = make_shards("ships", [make_text("ships", n, 90) for n in range(3)])
    wanted = sorted(
        tuple(pair)
        for unit in source.units
        for pair in np.lib.stride_tricks.sliding_window_view(
            np.fromfile(unit.folder / "tokens.bin", np.uint16), 2
        ).tolist()
    )
    got = sorted(
        tuple(pair)
        for chunk in training_chunks([source], 10**9)
        if len(chunk) > 1
        for pair in np.lib.stride_tricks.sliding_window_view(chunk, 2).tolist()
    )
    assert got == wanted


def test_figures_on_the_same_bytes_as_the_models(inputs, make_work) -> None:
    work = make_work(BaselinesSection(), **inputs)
    result = run(work)
    found = result.info["baselines"]
    expected = sum(document.num_bytes for document in read_documents(inputs["heldout"]))
    assert found["xz"]["bytes"] == found["bigram"]["bytes"] == expected == result.counts["bytes"]
    assert set(found["xz"]["sources"]) == set(found["bigram"]["sources"]) == {"birds", "ships"}
    rows = pq.read_table(work.folder / "documents.parquet").to_pylist()
    assert sum(row["bits"] for row in rows) == pytest.approx(found["bigram"]["bits"])
    assert run(make_work(BaselinesSection(), **inputs)).content == result.content
    assert result.info["bigram"]["training_tokens"] > 0


def test_without_training_tokens_the_bigram_is_uniform(inputs, make_work) -> None:
    only = {role: inputs[role] for role in ("heldout", "tokenizer")}
    found = run(make_work(BaselinesSection(), **only)).info["baselines"]["bigram"]
    assert found["bits_per_token"] == pytest.approx(math.log2(300))


def test_no_documents(tokenizer, make_heldout, make_work) -> None:
    with pytest.raises(InputError, match="expected held-out documents, got none"):
        run(make_work(BaselinesSection(), heldout=make_heldout([], name="none"), tokenizer=tokenizer))
