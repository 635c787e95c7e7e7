"""Training and import of tokenizers, and the directory they are written to."""

import base64
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from modalities.errors import InputError
from modalities.tokenization import encoding, stage, tokenizer
from modalities.tokenization.config import TokenizationConfig, TrainingConfig, section, tokenizer_section
from modalities.tokenization.training import read_samples
from modalities.tokens import Shard
from modalities.work import Result, Upstream, Work

TEXTS = ["A sentence.", "Zwei S\u00e4tze. \U0001f600", "  spaces\n\nand lines ", "x = 12345", "<|endoftext|>"]


@pytest.fixture
def make(work_of: Callable[..., Work[Any]]) -> Callable[..., tuple[Work[Any], Result]]:
    """Run the node for a config."""

    def run(config: TokenizationConfig, inputs: Any = None, sources: tuple[str, ...] = ()) -> tuple[Work[Any], Result]:
        work = work_of(tokenizer_section(config, sources), inputs or {})
        return work, tokenizer.run(work)

    return run


def test_autotokenizer_loads_it_and_agrees(trained: Callable[..., Upstream]) -> None:
    from transformers import AutoTokenizer

    upstream = trained(special_tokens=("<|user|>",), begin_of_document="<|begin|>")
    stock = AutoTokenizer.from_pretrained(upstream.folder)
    reference = encoding.load(upstream.folder / "tokenizer.json")
    for text in TEXTS:
        ids = stock(text, add_special_tokens=False)["input_ids"]
        assert ids == reference.encode(text, add_special_tokens=False).ids
        assert stock.decode(ids) == text
    info = upstream.manifest.info
    assert (stock.eos_token, stock.eos_token_id) == ("<|endoftext|>", info["end_of_document_id"])
    assert (stock.bos_token, stock.bos_token_id) == ("<|begin|>", info["begin_of_document_id"])
    assert len(stock) == info["vocab_size"] == 600
    assert info["token_dtype"] == "uint16"
    assert reference.token_to_id("<|user|>") == 2
    assert 2 < info["bytes_per_token"]["novels"]["en"] == info["bytes_per_token"]["novels"]["all"]


def test_training_is_deterministic_over_threads(tmp_path: Path) -> None:
    script = (
        "import gzip, json, sys\n"
        "import pyarrow as pa\n"
        "from modalities.tokenization.config import TrainingConfig\n"
        "from modalities.tokenization.training import Sample, train\n"
        "lines = gzip.open('data/demo/austen.jsonl.gz', 'rt', encoding='utf-8')\n"
        "texts = [json.loads(line)['text'][:50000] for _, line in zip(range(20), lines)]\n"
        "sample = Sample(source='s', texts=pa.array(texts, pa.large_string()), languages=pa.array(['en'] * len(texts)))\n"
        "made = train(iter([sample]), config=TrainingConfig(vocab_size=2000), special_tokens=['<e>'], split_pattern='gpt2')\n"
        "sys.stdout.write(made.to_str())\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "3")
    }
    assert len(outputs) == 1


def test_sample_is_bounded_weighted_and_repeatable(unit_of: Any, source_of: Any) -> None:
    inputs = source_of("a", [unit_of([f"a{n:04}" * 20 for n in range(200)], group_rows=20) for _ in range(3)])
    inputs |= source_of("b", [unit_of([f"b{n:04}" * 20 for n in range(300)], group_rows=50)])
    config = TrainingConfig(sample_bytes=20_000, train_on={"a": 3, "b": 1})

    def sizes() -> dict[str, int]:
        found = {"a": 0, "b": 0}
        for sample in read_samples(inputs, sources=("a", "b"), config=config):
            texts = sample.texts.to_pylist()
            assert all(text.startswith(sample.source) for text in texts)
            found[sample.source] += sum(map(len, texts))
        return found

    first = sizes()
    assert first == sizes()
    assert 14_000 <= first["a"] <= 15_000
    assert 4_500 <= first["b"] <= 5_000


def test_sample_sees_kept_documents_as_rewritten(unit_of: Any, source_of: Any) -> None:
    unit = unit_of(
        ["kept", "dropped", "duplicate", "", "old"], keep=[1, 0, 1, 1, 1], duplicate=[0, 0, 1, 0, 0], masked={4: "new"}
    )
    samples = read_samples(source_of("s", [unit]), sources=("s",), config=TrainingConfig())
    assert [text for sample in samples for text in sample.texts.to_pylist()] == ["kept", "new"]


def test_nothing_to_train_on(make: Any, unit_of: Any, source_of: Any) -> None:
    inputs = source_of("s", [unit_of(["a", "b"], keep=[False, False])])
    with pytest.raises(InputError, match="expected text to train on"):
        make(TokenizationConfig(), inputs, ("s",))


# --- import ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Train a tokenizer with added tokens beyond its vocabulary, as others do."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        TEXTS * 5, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_tokens(["<extra>"])
    made.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    made.enable_truncation(4)
    folder = tmp_path / "foreign"
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("what", ["file", "directory"])
def test_import_of_tokenizer_json(foreign: Path, make: Any, what: str) -> None:
    if what == "directory":
        (foreign / "tokenizer_config.json").write_text(
            '{"eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}'
        )
        (foreign / "model.safetensors").write_bytes(b"not looked at")
    path = foreign if what == "directory" else foreign / "tokenizer.json"
    work, result = make(TokenizationConfig(tokenizer=path, end_of_document="</s>"))
    assert (work.folder / "tokenizer.json").read_bytes() == (foreign / "tokenizer.json").read_bytes()
    assert not (work.folder / "model.safetensors").exists()
    count = Tokenizer.from_file(str(foreign / "tokenizer.json")).get_vocab_size(with_added_tokens=True)
    assert result.info["vocab_size"] == count
    assert result.info["end_of_document_id"] == count - 1


def test_added_tokens_beyond_the_vocabulary(
    foreign: Path, make: Any, upstream: Any, unit_of: Any, work_of: Any
) -> None:
    work, result = make(TokenizationConfig(tokenizer=foreign, end_of_document="</s>"))
    texts = ["a text that is longer than four tokens <extra> by far", "</s>"]
    config = section(TokenizationConfig(end_of_document="</s>", verify_share=1.0))
    unit = work_of(config, {**unit_of(texts), "tokenizer": upstream(work.folder, result)})
    assert stage.run_unit(unit).info["engine"] == "gigatoken"
    shard = Shard(unit.folder / "tokens")
    reference = encoding.load(foreign / "tokenizer.json")
    assert reference.token_to_id("<extra>") in shard.document(0)
    assert reference.decode(shard.document(0).tolist()[:-1]) == texts[0]
    assert shard.document(1).tolist().count(reference.token_to_id("</s>")) == 1


def test_import_enters_by_content(foreign: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere.json"
    copy.write_bytes((foreign / "tokenizer.json").read_bytes())
    first = tokenizer_section(TokenizationConfig(tokenizer=foreign / "tokenizer.json"), ("s",))
    second = tokenizer_section(TokenizationConfig(tokenizer=copy), ("s",))
    assert first.imported_sha256 == second.imported_sha256
    assert first.sources == ()
    copy.write_bytes(copy.read_bytes() + b" ")
    assert tokenizer_section(TokenizationConfig(tokenizer=copy), ("s",)).imported_sha256 != first.imported_sha256


def test_end_of_document_must_exist(foreign: Path, make: Any) -> None:
    with pytest.raises(InputError, match=r"tokenization\.end_of_document: expected .*</s>.*got '<\|endoftext\|>'"):
        make(TokenizationConfig(tokenizer=foreign))


def test_not_a_tokenizer(tmp_path: Path, make: Any) -> None:
    (tmp_path / "a.json").write_text('{"hello": 1}')
    with pytest.raises(InputError, match=r"expected a tokenizer\.json"):
        make(TokenizationConfig(tokenizer=tmp_path / "a.json"))
    (tmp_path / "a.model").write_bytes(b"\xff\xfe nonsense")
    with pytest.raises(InputError, match="expected a SentencePiece model"):
        make(TokenizationConfig(tokenizer=tmp_path / "a.model"))


def _ranks(path: Path, *, skip: int | None = None) -> dict[bytes, int]:
    tokens = [bytes([n]) for n in range(256) if n != skip]
    tokens += [b"th", b"the", b" the", b"an", b"and", b" and", b"ab", b"abc", b"bc"]
    path.write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % n for n, t in enumerate(tokens)))
    return {token: n for n, token in enumerate(tokens)}


def _tiktoken_ids(piece: bytes, ranks: dict[bytes, int]) -> list[int]:
    """Merge the pair of lowest rank until there is none: what tiktoken does to one piece."""
    parts = [piece[n : n + 1] for n in range(len(piece))]
    while len(parts) > 1:
        found = [(ranks[a + b], n) for n, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in ranks]
        if not found:
            break
        n = min(found)[1]
        parts[n : n + 2] = [parts[n] + parts[n + 1]]
    return [ranks[part] for part in parts]


def test_import_of_tiktoken(tmp_path: Path, make: Any) -> None:
    ranks = _ranks(tmp_path / "t.tiktoken")
    work, result = make(TokenizationConfig(tokenizer=tmp_path / "t.tiktoken", split_pattern="cl100k"))
    assert result.info["end_of_document_id"] == len(ranks) == result.info["vocab_size"] - 1
    made = encoding.load(work.folder / "tokenizer.json")
    for piece in ("the", " the", "bathe", "abc", "abbcab", " and", "\u00e9"):
        assert made.encode(piece, add_special_tokens=False).ids == _tiktoken_ids(piece.encode(), ranks)
    _, why = encoding.open_encoder(work.folder / "tokenizer.json", special_in_text=False)
    assert why is None


def test_tiktoken_file_without_all_bytes(tmp_path: Path, make: Any) -> None:
    _ranks(tmp_path / "t.tiktoken", skip=7)
    with pytest.raises(InputError, match="each of the 256 bytes, got none for 7"):
        make(TokenizationConfig(tokenizer=tmp_path / "t.tiktoken"))
    (tmp_path / "t.tiktoken").write_bytes(b"IQ== 0\nIg== one\n")
    with pytest.raises(InputError, match=r"t\.tiktoken:2: expected base64 and a rank"):
        make(TokenizationConfig(tokenizer=tmp_path / "t.tiktoken"))


def _sentencepiece(path: Path) -> None:
    """Write a small BPE model with byte fallback, field by field of its protobuf."""
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()
    proto.trainer_spec.model_type = 2
    proto.trainer_spec.byte_fallback = True
    proto.trainer_spec.unk_piece = "<unk>"
    proto.normalizer_spec.add_dummy_prefix = True
    proto.normalizer_spec.escape_whitespaces = True
    proto.normalizer_spec.remove_extra_whitespaces = False
    pieces = [("<unk>", 2), ("<s>", 3), ("</s>", 3), *((f"<0x{n:02X}>", 6) for n in range(256))]
    merged = ["\u2581a", "bc", "\u2581abc", *"\u2581abc"]
    for place, (piece, kind) in enumerate([*pieces, *((piece, 1) for piece in merged)]):
        added = proto.pieces.add()
        added.piece, added.type, added.score = piece, kind, -float(max(0, place - len(pieces)))
    path.write_bytes(proto.SerializeToString())


def test_import_of_sentencepiece(tmp_path: Path, make: Any) -> None:
    _sentencepiece(tmp_path / "s.model")
    work, result = make(
        TokenizationConfig(tokenizer=tmp_path / "s.model", end_of_document="</s>", begin_of_document="<s>")
    )
    assert (result.info["begin_of_document_id"], result.info["end_of_document_id"]) == (1, 2)
    made = encoding.load(work.folder / "tokenizer.json")
    encoded = made.encode("abc a\u00e9", add_special_tokens=False)
    assert encoded.tokens == ["\u2581abc", "\u2581a", "<0xC3>", "<0xA9>"]
    assert made.decode(encoded.ids) == "abc a\u00e9"


def test_files_are_the_same_at_every_run(foreign: Path, make: Any) -> None:
    config = TokenizationConfig(tokenizer=foreign, end_of_document="</s>")
    (first, one), (second, two) = make(config), make(config)
    assert one.content == two.content
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()
    assert json.loads((first.folder / "special_tokens_map.json").read_text()) == {"eos_token": "</s>"}


def test_a_directory_with_tiktoken_ranks(tmp_path: Path, make: Any) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    ranks = _ranks(folder / "tokenizer.model")
    config = TokenizationConfig(tokenizer=folder, split_pattern="o200k")
    assert tokenizer_section(config, ()).split_pattern == "o200k"
    _, result = make(config)
    assert result.info["vocab_size"] == len(ranks) + 1


def test_a_small_sample_gives_fewer_ids_and_says_so(make: Any, unit_of: Any, source_of: Any) -> None:
    inputs = source_of("s", [unit_of(["aa bb", "aa bb"])])
    _, result = make(TokenizationConfig(train=TrainingConfig(vocab_size=5000)), inputs, ("s",))
    assert result.info["vocab_size"] < result.info["vocab_size_asked"] == 5000
