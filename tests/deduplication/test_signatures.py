"""Words and signatures against datatrove's, bit for bit."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
from datatrove.utils.hashing import HashConfig
from datatrove.utils.text import simplify_text
from datatrove.utils.word_tokenizers import WhitespaceTokenizer, load_word_tokenizer

from modalities.deduplication import config as keys
from modalities.deduplication import kernels, minhash, signatures, words
from modalities.errors import InputError

ODD = [
    "",
    "   \n\t ",
    "word",
    "Don't gonna cannot U.S.A. e.g. 10km 3.14 1,000.5 x:x.SepalWidth/y ''s/before :-) ¯\\_(ツ)_/¯",
    "ΟΔΥΣΣΕΥΣ Σ ΑΣ. İstanbul ıI straße STRASSE ﬁne é e\u0301 \u0301alone a \u0301 b",
    "no\u00a0break\u2003em\u3000ideographic\x1cfile\x85next\u2028line\u1680ogham zero\u200bwidth \ufeffbom",
    "漢字かな交じり文 한국어 ไทย العربية हिन्दी \U0001f600\U0001f1e9\U0001f1ea ①②③ ٣٫١٤ १२३",
    "\x00nul \x07bell ;greek?mark\u037e 'quoted' \u2018curly\u2019 (a)(b)[c] http://a.b/c?d=e#f mail@example.org",
    "x" * 70_000 + " " + "y1" * 5000,
    "§5 Abs. 2 Nr. 3 BGB, z.B. u.a. d.h. 1. Januar 2.000,50 € °C 50% #tag @name",
]


def _reference(texts: list[str], *, hash: str, language: str) -> list[np.ndarray | None]:
    function = {"xxhash64": "xxhash", "sha1": "sha1"}[hash]
    config = MinhashConfig(hash_config=HashConfig(precision=64, hash_fc=function))
    stage = MinhashDedupSignature("unused", config=config, language=language)
    found = [stage.get_shingles(text) for text in texts]
    return [np.concatenate(stage.get_signature(s)).astype(np.uint64) if s.size else None for s in found]


def _ours(texts: list[str], *, hash: Any, language: str) -> minhash.Signatures:
    split = words.splitter(language).split(pa.array(texts, pa.large_string()))
    parameters = minhash.Parameters(ngram=5, buckets=14, hashes_per_bucket=8, seed=1, hash=hash)
    return minhash.signatures(split, parameters=parameters)


@pytest.mark.parametrize("hash", ["xxhash64", "sha1"])
@pytest.mark.parametrize("language", ["en", "de"])
def test_signatures_equal_datatrove(hash: str, language: str, novels: list[str], pages: dict[str, list[str]]) -> None:
    texts = ODD + pages[language][:60] + (novels[::30] if language == "en" else [])
    ours, reference = _ours(texts, hash=hash, language=language), _reference(texts, hash=hash, language=language)
    assert [expected is not None for expected in reference] == ours.has.tolist()
    assert sum(ours.has) > 60
    for expected, got in zip(reference, ours.values, strict=True):
        if expected is not None:
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("language", ["en", "deu_Latn", "fr", None])
def test_words_equal_datatrove(language: str | None, novels: list[str], pages: dict[str, list[str]]) -> None:
    texts = ODD + novels[:5] + pages["de"][:20]
    reference = load_word_tokenizer(language) if language else WhitespaceTokenizer()
    splitter = words.splitter(language)
    assert splitter.name.startswith("memo:")
    for _ in range(2):  # cold, then from the memo
        found = splitter.split(pa.array(texts, pa.large_string()))
        assert _lists(found) == [reference.word_tokenize(simplify_text(text)) for text in texts]


def test_language_without_blanks_goes_through_datatrove(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pairs:
        def word_tokenize(self, text: str) -> list[str]:
            return [text[i : i + 2] for i in range(0, len(text), 2)]

    monkeypatch.setattr("datatrove.utils.word_tokenizers.load_word_tokenizer", lambda code: Pairs())
    splitter = words.splitter("th")
    assert splitter.name == "datatrove:th"
    found = splitter.split(pa.array(["abcde", None, "fg"], pa.large_string()))
    assert _lists(found) == [["ab", "cd", "e"], [], ["fg"]]


def test_unknown_language_is_named() -> None:
    with pytest.raises(InputError, match=r"expected a language .* got 'xy'"):
        words.splitter("xy")


def test_memo_survives_growth_reset_and_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{n:x}," for n in rng.integers(0, 10**6, 300)) for _ in range(60)]
    array = pa.array(texts, pa.large_string())
    reference = load_word_tokenizer("en")
    expected = [reference.word_tokenize(simplify_text(text)) for text in texts]
    memo = words.splitter("en", cache=tmp_path)
    assert isinstance(memo, words.ChunkMemo)
    assert _lists(memo.split(array)) == expected
    memo.save()
    warm = words.splitter("en", cache=tmp_path)
    assert isinstance(warm, words.ChunkMemo)
    assert len(warm) == len(memo) > 10_000
    assert _lists(warm.split(array)) == expected
    monkeypatch.setattr(words, "MAX_CHUNKS", 500)
    for start in range(0, 60, 7):
        assert _lists(memo.split(array.slice(start, 7))) == expected[start : start + 7]
    (damaged,) = tmp_path.iterdir()
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    assert len(words.splitter("en", cache=tmp_path)) == 0  # type: ignore[arg-type]


def test_xxhash_kernel_equals_the_library() -> None:
    data = np.random.default_rng(0).integers(0, 256, 2000, dtype=np.uint8)
    for length in [*range(100), 1000]:
        for seed in (0, 1, 2**63):
            expected = xxhash.xxh64_intdigest(data[3 : 3 + length].tobytes(), seed=seed)
            assert int(kernels.xxh64(data, 3, 3 + length, np.uint64(seed))) == expected


def test_blanks_are_those_of_python() -> None:
    for code in [*range(0x3100), *range(0xD7F0, 0xD800), 0xFEFF, 0x1F600]:
        character = chr(code)
        data = np.frombuffer(f"{character}a".encode(), np.uint8)
        expected = len(character.encode()) if character.isspace() else 0
        assert kernels._blank(data, 0, len(data)) == expected, hex(code)


def test_unit_has_a_row_for_every_document(store: Any, make: Callable[..., Any], prose: Callable[..., str]) -> None:
    documents = [make("a", prose(1)), make("b", "dropped", keep=False), make("c", "two words"), make("d", "")] * 2
    documents = [make(f"{d.id}{i}", d.text, d.keep) for i, d in enumerate(documents)]
    inputs = {"ingestion": store.ingest(documents, "u"), "filtering": store.filter(documents, "u")}
    work = store.work("s", keys.signatures_section(keys.DeduplicationConfig(), "en"), inputs)
    result = signatures.run_unit(work)
    file = pq.ParquetFile(work.folder / "signatures.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [3, 3, 2]
    rows = file.read().to_pylist()
    assert [row["id"] for row in rows] == ["a0", None, "c2", "d3", "a4", None, "c6", "d7"]
    for document, row in zip(documents, rows, strict=True):
        expected = int.from_bytes(xxhash.xxh3_128_digest(document.text.encode())) if document.keep else None
        got = None if row["text_high"] is None else row["text_high"] << 64 | row["text_low"]
        assert got == expected
        assert (row["bands"] is None) == (not document.keep or len(document.text) < 20)
    assert result.counts == {"documents": 6, "signatures": 2}
    assert result.info["words"] == "memo:en"


def test_band_keys_are_hashes_of_the_band(novels: list[str]) -> None:
    found = _ours(novels[:3], hash="xxhash64", language="en")
    keys_of = minhash.band_keys(found, buckets=14)
    for doc in range(3):
        for band in range(14):
            data = found.values[doc, 8 * band : 8 * band + 8].astype("<u8").tobytes()
            assert int(keys_of[doc, band, 0]) == xxhash.xxh64_intdigest(data, seed=0)
            assert int(keys_of[doc, band, 1]) == xxhash.xxh64_intdigest(data, seed=1)


def test_sha1_shingles_are_the_first_eight_bytes() -> None:
    split = words.splitter("en").split(pa.array(["One two three"], pa.large_string()))
    hashes, ends = minhash.shingles(split, ngram=2, hash="sha1")
    expected = [int.from_bytes(hashlib.sha1(text).digest()[:8], "little") for text in (b"one two", b"two three")]
    assert hashes.tolist() == expected
    assert ends.tolist() == [2]


def test_empty_unit(store: Any) -> None:
    inputs = {"ingestion": store.ingest([], "u"), "filtering": store.filter([], "u")}
    work = store.work("s", keys.signatures_section(keys.DeduplicationConfig(), "en"), inputs)
    assert signatures.run_unit(work).counts == {"documents": 0, "signatures": 0}
    assert pq.read_table(work.folder / "signatures.parquet").num_rows == 0


def _lists(found: words.Words) -> list[list[str]]:
    lists, first = [], 0
    for last in found.ends.tolist():
        text = found.data[found.starts[first] : found.starts[last]].tobytes().decode()
        assert text == "" or text.endswith(" ")
        lists.append(text.split(" ")[:-1])
        assert len(lists[-1]) == last - first
        first = last
    return lists
