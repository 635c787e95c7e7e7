"""JSONL straight to a shard: the same ids as through the stage, and no line lost in silence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modalities.errors import InputError
from modalities.tokenization import encoding, jsonl, stage
from modalities.tokens import Shard
from modalities.work import Upstream, Work


@pytest.mark.parametrize("block", [10, 1000, 4_000_000])
def test_equals_the_stage(
    trained: Callable[..., Upstream],
    unit_of: Any,
    work_of: Callable[..., Work[Any]],
    plain_section: Any,
    demo_texts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    block: int,
) -> None:
    tokenizer = trained()
    texts = [*demo_texts[:10], "", "a\nb <|endoftext|>", "\U0001f600", ""]
    work = work_of(plain_section, {**unit_of(texts), "tokenizer": tokenizer})
    stage.run_unit(work)
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"id": n, "text": text}, ensure_ascii=n % 2 == 0) for n, text in enumerate(texts)]
    path.write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setattr(jsonl, "BATCH_BYTES", block)
    jsonl.encode_jsonl(path, tmp_path / "out", tokenizer=tokenizer.folder / "tokenizer.json", verify_share=1.0)
    Shard(tmp_path / "out").verify()
    for suffix in (".bin", ".idx", ".json"):
        assert (tmp_path / f"out{suffix}").read_bytes() == (work.folder / f"tokens{suffix}").read_bytes()


@pytest.mark.parametrize(
    "bad", ['{"body": "x"}', '{"text": null}', '{"text": 1}', "[1]", '{"text": "x"', '{"text": "\\ud800"}', "\ufeff{}"]
)
def test_a_bad_line_is_named_and_nothing_is_left(trained: Callable[..., Upstream], tmp_path: Path, bad: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n\n' + bad + '\n{"text": "good"}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.jsonl:3: expected a JSON object with a text"):
        jsonl.encode_jsonl(path, tmp_path / "out", tokenizer=trained().folder / "tokenizer.json")
    assert not list(tmp_path.glob("out*"))


def test_a_mismatch_falls_back(
    trained: Callable[..., Upstream], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = trained().folder / "tokenizer.json"
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n{"text": "better"}\n', encoding="utf-8")
    jsonl.encode_jsonl(path, tmp_path / "right", tokenizer=file)
    honest = encoding.Fast.encode
    monkeypatch.setattr(
        encoding.Fast,
        "encode",
        lambda self, texts: encoding.Encoded(honest(self, texts).ids[::-1], honest(self, texts).offsets),
    )
    jsonl.encode_jsonl(path, tmp_path / "out", tokenizer=file)
    assert (tmp_path / "out.bin").read_bytes() == (tmp_path / "right.bin").read_bytes()
