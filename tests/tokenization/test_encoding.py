"""Any texts through encode, shard, merge and split: the same documents come back."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modalities.errors import InputError
from modalities.tokenization import encoding
from modalities.tokenization.config import TrainingConfig
from modalities.tokenization.encoding import Bounds, surround
from modalities.tokenization.training import Sample, train
from modalities.tokens import Shard, ShardWriter, merge, split, token_dtype

Texts = st.lists(
    st.one_of(st.text(max_size=40), st.sampled_from(["", "<|e|>", "the <|e|> end", "\n\n", "  the"])), max_size=10
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, demo_texts: list[str]) -> Path:
    """A tokenizer of 700 ids."""
    texts = pa.array(demo_texts[:40], pa.large_string())
    sample = Sample(source="s", texts=texts, languages=pa.array(["en"] * len(texts)))
    config = TrainingConfig(vocab_size=700)
    made: Any = train(iter([sample]), config=config, special_tokens=["<|e|>"], split_pattern="gpt2")
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(made.to_str(), encoding="utf-8")
    return path


@settings(max_examples=60, deadline=None)
@given(texts=Texts, data=st.data(), before=st.sampled_from([None, 5]), special=st.booleans())
def test_encode_shard_merge_split_keep_every_document(
    file: Path,
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    data: st.DataObject,
    before: Any,
    special: bool,
) -> None:
    folder = tmp_path_factory.mktemp("property")
    array = pa.array(texts, pa.large_string())
    fast = encoding.Fast(file, special_in_text=special)
    reference = encoding.Reference(file, special_in_text=special)
    one, two = fast.encode(array), reference.encode(array)
    assert np.array_equal(one.ids, two.ids)
    assert np.array_equal(one.offsets, two.offsets)
    cut = data.draw(st.integers(0, len(texts)))
    for name, part in (("a", array[:cut]), ("b", array[cut:])):
        with ShardWriter(folder / name, dtype=token_dtype(700)) as writer:
            for batch in encoding.batches(part, size=data.draw(st.integers(1, 100))):
                writer.write(*surround(fast.encode(batch), Bounds(before=before, after=0), writer.dtype))
            writer.finish()
    merge([folder / "a", folder / "b"], folder / "c")
    again = data.draw(st.integers(0, len(texts)))
    split(folder / "c", [folder / "d", folder / "e"], documents=[again, len(texts) - again])
    shards = [Shard(folder / "d"), Shard(folder / "e")]
    documents = [shard.document(n).tolist() for shard in shards for n in range(shard.num_documents)]
    assert len(documents) == len(texts)
    first = 0 if before is None else 1
    assert [reference.tokenizer.decode(d[first:-1], skip_special_tokens=False) for d in documents] == texts
    assert all(d[-1] == 0 and (before is None or d[0] == before) for d in documents)


def test_batches_cover_every_row_once() -> None:
    texts = pa.array(["a" * n for n in (0, 5, 0, 100, 1, 1, 1)], pa.large_string())[1:]
    parts = list(encoding.batches(texts, size=7))
    assert pa.concat_arrays(parts).equals(texts)
    assert [len(part) for part in parts] == [2, 1, 3]


def test_a_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer\.json: expected a tokenizer\.json"):
        encoding.load(tmp_path / "tokenizer.json")


def test_the_sample_is_a_share_and_the_same_each_time(file: Path, demo_texts: list[str]) -> None:
    array = pa.array(demo_texts * 20, pa.large_string())
    encoded = encoding.Fast(file, special_in_text=False).encode(array)
    counts = set()
    for _ in range(2):
        verifier = encoding.Verifier(lambda: encoding.Reference(file, special_in_text=False), share=0.05)
        verifier.check(array, encoded, first=0)
        counts.add(verifier.num_documents)
    assert len(counts) == 1
    assert 0.03 * len(array) < counts.pop() < 0.07 * len(array)
