"""One unit to one shard: ids as `tokenizers` gives them, nothing lost, nothing shifted."""

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from modalities.errors import StoreError
from modalities.tokenization import encoding, heldout, stage
from modalities.tokenization.config import TokenizationConfig, section
from modalities.tokens import Shard
from modalities.work import Result, Upstream, Work

ADVERSARIAL = [
    "",
    " ",
    "\n\n\n",
    "\t\t x",
    "<|endoftext|>",
    "a<|endoftext|>b <|endoftext|> c",
    "<|endoftext",
    "e\u0301\u0301\u0323 \u00e9 \ufb01",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22 \ud55c\uad6d\uc5b4 \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "\x00\x01\x7f\x85\u2028\ufeff",
    "x" * 3000,
    " " * 3000,
    "1234567890" * 100,
    "don't I'LL we've'd",
    "\u00a0\u3000\u2003space",
]


def _random_strings(count: int) -> list[str]:
    source = random.Random(7)
    ranges = [(32, 127), (0xA0, 0x250), (0x300, 0x370), (0x900, 0x980), (0x4E00, 0x9FFF), (0x1F600, 0x1F640), (9, 14)]
    return [
        "".join(chr(source.randrange(*source.choice(ranges))) for _ in range(source.randrange(120)))
        for _ in range(count)
    ]


def _reference_ids(tokenizer: Upstream, texts: list[str]) -> list[list[int]]:
    """Ids by `tokenizers` alone, specials as text, with the end of document."""
    reference = Tokenizer.from_file(str(tokenizer.folder / "tokenizer.json"))
    reference.encode_special_tokens = True
    end = reference.token_to_id("<|endoftext|>")
    return [[*reference.encode(text, add_special_tokens=False).ids, end] for text in texts]


def _documents(folder: Path) -> list[list[int]]:
    shard = Shard(folder / "tokens")
    shard.verify()
    return [shard.document(n).tolist() for n in range(shard.num_documents)]


@pytest.fixture
def encode(
    unit_of: Callable[..., dict[str, Upstream]], work_of: Callable[..., Work[Any]], plain_section: Any
) -> Callable[..., tuple[Work[Any], Result]]:
    """Run the node on texts."""

    def run(tokenizer: Upstream, texts: list[str], *, section_: Any = None, **unit: Any) -> tuple[Work[Any], Result]:
        work = work_of(section_ or plain_section, {**unit_of(texts, **unit), "tokenizer": tokenizer})
        return work, stage.run_unit(work)

    return run


@pytest.mark.parametrize("split_pattern", ["gpt2", "cl100k", "o200k"])
def test_ids_equal_tokenizers(
    trained: Callable[..., Upstream], encode: Any, demo_texts: list[str], split_pattern: str
) -> None:
    tokenizer = trained(split_pattern=split_pattern)
    texts = demo_texts[:30] + ADVERSARIAL + _random_strings(150)
    work, result = encode(tokenizer, texts, group_rows=50)
    assert result.info["engine"] == "gigatoken"
    assert result.info["verified_documents"] == len(texts)
    assert _documents(work.folder) == _reference_ids(tokenizer, texts)
    assert result.counts["documents_in"] == result.counts["documents_out"] == len(texts)
    assert result.counts["text_bytes"] == sum(len(text.encode()) for text in texts)
    assert result.counts["tokens"] == sum(map(len, _reference_ids(tokenizer, texts)))


def test_an_empty_document_shifts_nothing(trained: Callable[..., Upstream], encode: Any) -> None:
    tokenizer = trained()
    texts = ["one", "", "three", "", "five"]
    work, result = encode(tokenizer, texts)
    assert _documents(work.folder) == _reference_ids(tokenizer, texts)
    assert len(_documents(work.folder)[1]) == 1
    assert (result.counts["documents_out"], result.counts["empty_documents"]) == (5, 2)


def test_reads_through_masks_and_rewrites(trained: Callable[..., Upstream], encode: Any) -> None:
    tokenizer = trained()
    texts = [f"document number {n}" for n in range(8)]
    work, result = encode(
        tokenizer,
        texts,
        keep=[n != 1 for n in range(8)],
        duplicate=[n in (4, 5) for n in range(8)],
        rewritten={2: "rewritten", 6: "rewritten too"},
        masked={6: "masked", 7: ""},
    )
    seen = [texts[0], "rewritten", texts[3], "masked", ""]
    assert _documents(work.folder) == _reference_ids(tokenizer, seen)
    assert np.load(work.folder / "rows.npy").tolist() == [0, 2, 3, 6, 7]
    assert result.counts["documents_in"] == 5
    assert result.dropped == {}


def test_nothing_kept_is_an_empty_shard(trained: Callable[..., Upstream], encode: Any) -> None:
    work, result = encode(trained(), ["a", "b"], keep=[False, False])
    assert _documents(work.folder) == []
    assert (result.counts["documents_out"], result.counts["tokens"]) == (0, 0)


def test_a_literal_special_token_is_text_unless_asked_otherwise(trained: Callable[..., Upstream], encode: Any) -> None:
    tokenizer = trained()
    end = tokenizer.manifest.info["end_of_document_id"]
    work, result = encode(tokenizer, ["a<|endoftext|>b"])
    assert _documents(work.folder)[0].count(end) == 1
    assert result.counts["special_in_text"] == 0
    special = section(TokenizationConfig(special_tokens_in_text="special", verify_share=1.0))
    work, result = encode(tokenizer, ["a<|endoftext|>b"], section_=special)
    assert _documents(work.folder)[0].count(end) == 2
    assert result.counts["special_in_text"] == 1


def test_begin_of_document(trained: Callable[..., Upstream], encode: Any) -> None:
    tokenizer = trained(begin_of_document="<|begin|>")
    begin = tokenizer.manifest.info["begin_of_document_id"]
    work, _ = encode(tokenizer, ["one", "", "three"])
    assert [d[0] for d in _documents(work.folder)] == [begin] * 3
    assert [d[1:] for d in _documents(work.folder)] == _reference_ids(tokenizer, ["one", "", "three"])


def test_a_mismatch_falls_back_and_says_so(
    trained: Callable[..., Upstream], encode: Any, monkeypatch: pytest.MonkeyPatch, upstream: Any, work_of: Any
) -> None:
    tokenizer = trained()
    honest = encoding.Fast.encode

    def wrong(self: encoding.Fast, texts: Any) -> encoding.Encoded:
        encoded = honest(self, texts)
        return encoding.Encoded(np.where(encoded.ids == encoded.ids[-1], 300, encoded.ids), encoded.offsets)

    texts = ["a good text", "another", "and one more"]
    first, first_result = encode(tokenizer, texts)
    with monkeypatch.context() as patch:
        patch.setattr(encoding.Fast, "encode", wrong)
        work, result = encode(tokenizer, texts)
        assert result.info["engine"] == "tokenizers"
        assert "document" in result.info["mismatch"]
    assert _documents(work.folder) == _reference_ids(tokenizer, texts)
    assert result.content == first_result.content
    later, later_result = encode(tokenizer, texts)
    assert later_result.info["engine"] == "tokenizers"  # gigatoken is not trusted again with this tokenizer
    units = tuple(upstream(w.folder, r) for w, r in [(first, first_result), (work, result), (later, later_result)])
    with pytest.raises(StoreError, match=r"expected units of one engine, got .*'gigatoken': 1.*--force"):
        stage.gather(work_of(first.section, {}, own_units=units))
    total = stage.gather(work_of(first.section, {}, own_units=units[1:]))
    assert total.info["engine"] == "tokenizers"
    assert len(total.info["mismatches"]) == 1
    assert total.counts["documents_out"] == 6


def test_a_mismatch_outside_the_sample_is_seen_by_the_first_document(
    trained: Callable[..., Upstream], encode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = trained()
    honest = encoding.Fast.encode
    monkeypatch.setattr(
        encoding.Fast,
        "encode",
        lambda self, texts: dataclasses.replace(honest(self, texts), ids=honest(self, texts).ids[::-1]),
    )
    _, result = encode(tokenizer, ["a text of some words"], section_=section(TokenizationConfig(verify_share=1e-9)))
    assert result.info["engine"] == "tokenizers"


def test_recycling_changes_nothing(
    trained: Callable[..., Upstream], encode: Any, demo_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = trained()
    _, before = encode(tokenizer, demo_texts[:20])
    monkeypatch.setattr(encoding, "MAX_GROWTH_BYTES", -1)
    _, after = encode(tokenizer, demo_texts[:20])
    assert before.content == after.content


def test_content_does_not_depend_on_row_groups(
    trained: Callable[..., Upstream], encode: Any, demo_texts: list[str]
) -> None:
    tokenizer = trained()
    contents = {encode(tokenizer, demo_texts[:20], group_rows=rows)[1].content for rows in (1, 7, 20)}
    assert len(contents) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"normalizer": {"type": "NFC"}}, "normalizer"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}}, "pre-tokenizer"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre-tokenizer"),
        ({"model": {"dropout": 0.1}}, "dropout"),
        ({"model": {"type": "Unigram"}}, "Unigram"),
        ({"added_tokens": [{"content": "x", "id": 7, "single_word": True, "lstrip": False, "rstrip": False}]}, "'x'"),
        (
            {"added_tokens": [{"content": "a", "id": 7, "single_word": False, "lstrip": False, "rstrip": False}]},
            "another id",
        ),
    ],
)
def test_gigatoken_is_refused_where_it_is_wrong(
    trained: Callable[..., Upstream], change: dict[str, Any], reason: str
) -> None:
    spec = json.loads((trained().folder / "tokenizer.json").read_text(encoding="utf-8"))
    assert encoding.refusal(spec) is None
    for name, value in change.items():
        spec[name] = {**spec[name], **value} if name == "model" else value
    assert reason in str(encoding.refusal(spec))


def test_heldout_shard_has_one_document_per_row(
    trained: Callable[..., Upstream], work_of: Any, upstream: Any, plain_section: Any, tmp_path: Path
) -> None:
    import pyarrow as pa

    from modalities.documents import GroupWriter

    tokenizer = trained()
    texts = ["ein Satz", "", "a sentence", "another"]
    table = pa.table(
        {
            "source": ["a", "a", "b", "b"],
            "unit": ["u"] * 4,
            "row": pa.array(range(4), pa.int64()),
            "id": list("wxyz"),
            "text": pa.array(texts, pa.large_string()),
            "language": pa.array(["de", None, "en", "en"], pa.string()),
            "text_bytes": pa.array([len(t) for t in texts], pa.int64()),
        }
    )
    with GroupWriter(tmp_path / "documents.parquet", table.schema) as writer:
        writer.write(table.slice(0, 3))
        writer.write(table.slice(3))
    work = work_of(plain_section, {"heldout": upstream(tmp_path), "tokenizer": tokenizer})
    result = heldout.run(work)
    assert _documents(work.folder) == _reference_ids(tokenizer, texts)
    assert result.info["by_source"]["b"]["en"] == {
        "documents": 2,
        "tokens": sum(map(len, _reference_ids(tokenizer, texts[2:]))),
        "text_bytes": len(texts[2]) + len(texts[3]),
    }
    assert result.info["by_source"]["a"]["unknown"]["tokens"] == 1
