from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from modalities.errors import StoreError
from modalities.packing import show

WORDS = ["<end>", "one", "two", "three", "four", "\x1b[31m"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<end>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_documents_of_a_step(
    pack_documents: Callable[..., Any], tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = pack_documents({"web": [[[1, 2, 0], [3, 4, 5, 0]]]}, sequence_length=4)
    reader = made.reader(data_seed=1)
    show.documents_of_step(
        made.packing, made.tokenization, tokenizer=tokenizer, step=1, sequences_per_step=2, data_seed=1
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step 1: sequences 2 to 3 of 4 tokens"
    numbers = reader.order.sequences(np.asarray([2, 3]), data_seed=1)[2].tolist()
    assert [line for line in lines if line.startswith("sequence")] == [
        f"sequence {slot}: web, number {number} of 2, epoch 2" for slot, number in zip((2, 3), numbers, strict=True)
    ]
    assert "  document 0 of shard shard-web-0, 3 tokens (whole): one two <end>" in lines
    assert "  document 1 of shard shard-web-0, 2 tokens (0 to 1 of 4): three four" in lines
    assert "  document 1 of shard shard-web-0, 3 tokens (1 to 3 of 4): four \\x1b[31m <end>" in lines


def test_long_texts_are_cut_and_ids_need_no_tokenizer(pack_documents: Callable[..., Any]) -> None:
    reader = pack_documents({"web": [[[*range(100, 200), 0]]]}, sequence_length=256).reader()
    lines = list(show.lines_of_step(reader, tokenizer=None, step=0, sequences_per_step=1, max_characters=20))
    assert lines[-1].endswith(": 100 101 102 103 1...")


def test_missing_tokenizer(pack_documents: Callable[..., Any], tmp_path: Path) -> None:
    reader = pack_documents({"web": [[[1, 0]]]}).reader()
    with pytest.raises(StoreError, match=r"tokenizer\.json: missing"):
        list(show.lines_of_step(reader, tokenizer=tmp_path, step=0, sequences_per_step=1))
