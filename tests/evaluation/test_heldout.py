"""Bits per byte: the accounting, the window, and lm-eval's rolling likelihood as the trusted implementation."""

import dataclasses
import math

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from modalities import checkpoint
from modalities.errors import DivergedError, InputError, StoreError
from modalities.evaluation.bits import score_rows, windows
from modalities.evaluation.config import ComputeConfig, EvaluationSection, HeldoutConfig
from modalities.evaluation.stage import run
from modalities.evaluation.texts import length_class, open_tokenizer, read_documents


def section(**keys) -> EvaluationSection:
    compute = keys.pop("compute", ComputeConfig())
    return EvaluationSection(suite="heldout", step=7, heldout=HeldoutConfig(**keys), compute=compute)


@pytest.mark.parametrize(("window", "stride"), [(4, 4), (4, 2), (4, 1), (3, 2), (100, 50)])
def test_every_token_is_scored_once_with_enough_context(window: int, stride: int) -> None:
    rows = [np.arange(n) for n in (1, 2, 4, 5, 6, 11, 30)]
    scored: dict[int, list[int]] = {number: [] for number in range(len(rows))}
    for item in windows(rows, window=window, stride=stride):
        assert item.stop - item.start <= window
        scored[item.row] += range(item.first, item.stop)
        # a scored target has `window - stride` inputs before its own, or the whole row
        assert item.start == 0 or item.first - item.start >= window - stride
    assert all(scored[number] == list(range(len(row) - 1)) for number, row in enumerate(rows))


def test_bits_are_those_of_a_plain_loop(pretraining, tokenizer, heldout, make_work) -> None:
    work = make_work(section(window=32, stride=8), pretraining=pretraining, tokenizer=tokenizer, heldout=heldout)
    result = run(work)
    _, model = checkpoint.open_model(pretraining.folder)
    table = pq.read_table(work.folder / "documents.parquet").to_pylist()
    opened = open_tokenizer(tokenizer)
    for document, row in zip(read_documents(heldout), table, strict=True):
        ids = [0, *opened.encode([document.text])[0].tolist()]
        bits, start, scored = 0.0, 0, 0
        while scored < len(ids) - 1:
            stop = min(start + 32, len(ids) - 1)
            with torch.inference_mode():
                p = model(torch.tensor([ids[start:stop]]))[0].double().log_softmax(-1)
            bits -= sum(float(p[place - start, ids[place + 1]]) for place in range(scored, stop)) / math.log(2)
            scored, start = stop, start + 8
        assert row["bits"] == pytest.approx(bits, rel=1e-5)
        assert (row["id"], row["tokens"]) == (document.id, len(ids) - 1)
    assert result.info["bits"] == pytest.approx(sum(row["bits"] for row in table))
    assert result.info["bits_per_byte"] == result.info["bits"] / sum(row["bytes"] for row in table)


def test_agrees_with_lm_eval_rolling(pretraining, tokenizer, conversion, make_heldout, make_text, make_work) -> None:
    """Documents within one window, where both condition on all that came before."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    texts = ["a heron flew over", "Möwe \N{BIRD}!", make_text("ships", 4, 8)]
    held = make_heldout([("birds", text, "en") for text in texts], name="short")
    work = make_work(section(), pretraining=pretraining, tokenizer=tokenizer, heldout=held)
    run(work)
    ours = pq.read_table(work.folder / "documents.parquet")["bits"].to_numpy()
    harness = HFLM(pretrained=str(conversion.folder), backend="causal", dtype="float32", device="cpu", batch_size=1)
    asked = [Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=0) for text in texts]
    theirs = -np.array(harness.loglikelihood_rolling(asked, disable_tqdm=True)) / math.log(2)
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_breakdown_adds_up_and_names_groups(pretraining, tokenizer, heldout, make_work) -> None:
    result = run(make_work(section(), pretraining=pretraining, tokenizer=tokenizer, heldout=heldout))
    info = result.info
    assert set(info["sources"]) == {"birds", "ships"} and set(info["languages"]) == {"de", "en", "unknown"}
    for name in ("sources", "languages", "lengths"):
        for key in ("documents", "bytes", "tokens"):
            assert sum(group[key] for group in info[name].values()) == info[key] == result.counts[key]
        assert sum(group["bits"] for group in info[name].values()) == pytest.approx(info["bits"])
    assert info["documents"] == 6 and info["window"] == 64 and info["stride"] == 32
    assert info["bytes"] == sum(len(d.text.encode()) for d in read_documents(heldout))


def test_a_literal_special_token_is_text(tokenizer) -> None:
    ids = open_tokenizer(tokenizer).encode(["x <|endoftext|> y"])[0]
    assert 0 not in ids.tolist() and len(ids) > 5


def test_batches_change_nothing_but_last_bits(pretraining, tokenizer, heldout, make_work) -> None:
    inputs = {"pretraining": pretraining, "tokenizer": tokenizer, "heldout": heldout}
    first = run(make_work(section(), **inputs))
    again = run(make_work(section(), **inputs))
    one = run(make_work(section(compute=ComputeConfig(batch_tokens=1)), **inputs))
    assert first.content == again.content and first.info == again.info
    assert one.info["bits"] == pytest.approx(first.info["bits"], rel=1e-6)
    assert one.counts == first.counts


def test_uniform_model_costs_log2_of_the_vocabulary() -> None:
    rows = [np.arange(10), np.array([0]), np.arange(3)]

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*tokens.shape, 16)

    bits = score_rows(logits, rows, window=4, stride=2, batch_tokens=8, vocabulary=16, device="cpu")
    assert bits == pytest.approx([36.0, 0.0, 8.0])


def test_documents_limit_is_per_source(pretraining, tokenizer, heldout, make_work) -> None:
    work = make_work(section(documents=1), pretraining=pretraining, tokenizer=tokenizer, heldout=heldout)
    info = run(work).info
    assert {name: group["documents"] for name, group in info["sources"].items()} == {"birds": 1, "ships": 1}


def test_length_classes() -> None:
    assert [length_class(n) for n in (0, 999, 1000, 15_999, 64_000)] == [
        "under 1 kB",
        "under 1 kB",
        "1-4 kB",
        "4-16 kB",
        "64 kB and more",
    ]


# --- bad input -------------------------------------------------------------------------------------------------------


def test_nan_logits(pretraining, tokenizer, heldout, make_work, config, save, tmp_path) -> None:
    _, model = checkpoint.open_model(pretraining.folder)
    with torch.no_grad():
        model.norm.weight[0] = torch.nan
    broken = save(tmp_path / "nan", model, config)
    with pytest.raises(DivergedError, match=r"step 7: row 1: expected finite logits"):
        run(make_work(section(), pretraining=broken, tokenizer=tokenizer, heldout=heldout))


def test_tokenizer_larger_than_the_embedding(pretraining, tokenizer, heldout, make_work) -> None:
    info = dict(tokenizer.manifest.info) | {"vocab_size": 400}
    larger = dataclasses.replace(tokenizer, manifest=dataclasses.replace(tokenizer.manifest, info=info))
    with pytest.raises(InputError, match=r"vocab_size: expected at least the tokenizer's 400 ids, got 304"):
        run(make_work(section(), pretraining=pretraining, tokenizer=larger, heldout=heldout))


def test_no_documents(pretraining, tokenizer, make_heldout, make_work) -> None:
    with pytest.raises(InputError, match="expected held-out documents, got none"):
        run(make_work(section(), pretraining=pretraining, tokenizer=tokenizer, heldout=make_heldout([])))


@pytest.mark.parametrize("name", ["tokenizer.json", "documents.parquet"])
def test_damaged_inputs_are_named(pretraining, tokenizer, heldout, make_work, name: str) -> None:
    file = (tokenizer if name == "tokenizer.json" else heldout).folder / name
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(StoreError, match=name):
        run(make_work(section(), pretraining=pretraining, tokenizer=tokenizer, heldout=heldout))


def test_truncated_checkpoint(pretraining, tokenizer, heldout, make_work) -> None:
    file = next((pretraining.folder / "checkpoint").glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StoreError, match=file.name):
        run(make_work(section(), pretraining=pretraining, tokenizer=tokenizer, heldout=heldout))
