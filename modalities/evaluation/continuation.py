"""The task `continuation`: a passage of a held-out document, and which of several endings is the true one.

Offline, without items of anybody else's, and above chance for a small model: the wrong endings are from other documents of the
same source, so names, topic and register give the true one away. A document is cut into passages of `context_bytes` plus
`ending_bytes`, white space collapsed; of all passages of a source, `items` are taken, spread evenly by a keyed hash.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modalities.errors import InputError
from modalities.evaluation.config import ContinuationConfig
from modalities.evaluation.texts import Document, read_documents, sources_of
from modalities.work import Upstream

NAME = "continuation"
Item = Mapping[str, Any]


def write_task(heldout: Upstream, config: ContinuationConfig, folder: Path) -> dict[str, Any]:
    """Write `continuation.jsonl` into `folder`; return the task for lm-eval. Raises `InputError` if there is no item."""
    items = [
        item for documents in sources_of(read_documents(heldout)).values() for item in make_items(documents, config)
    ]
    if not items:
        raise InputError(
            f"evaluation.tasks.{NAME}: expected at least {config.choices} held-out documents of "
            f"{config.context_bytes + config.ending_bytes} bytes in one source, got fewer; shorten the passages or hold out more"
        )
    path = folder / f"{NAME}.jsonl"
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), encoding="utf-8")
    return {
        "task": NAME,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "passage",
        "doc_to_choice": "endings",
        "doc_to_target": "label",
        "target_delimiter": " ",
        "metric_list": [{"metric": metric} for metric in ("acc", "acc_norm")],
        "metadata": {"version": 1},
    }


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A piece of a document."""

    document: Document
    number: int
    context: str
    ending: str


def make_items(documents: list[Document], config: ContinuationConfig) -> list[Item]:
    """Return the items of one source's documents; none if too few documents are long enough."""
    passages = [passage for document in documents for passage in _passages(document, config)]
    endings: dict[str, list[str]] = {}
    for passage in passages:
        endings.setdefault(passage.document.id, []).append(passage.ending)
    if len(endings) < config.choices:
        return []
    passages.sort(key=lambda p: _draw(config.seed, "item", p.document.source, p.document.id, p.number))
    items = (_item(passage, endings, config) for passage in passages)
    return list(itertools.islice((item for item in items if item is not None), config.items))


def _passages(document: Document, config: ContinuationConfig) -> Iterator[Passage]:
    """Yield consecutive passages; a last piece that is too short is left out."""
    words = document.text.split()
    number = start = 0
    while True:
        middle = _take(words, start, config.context_bytes)
        end = _take(words, middle, config.ending_bytes)
        if middle is None or end is None:
            return
        yield Passage(
            document=document, number=number, context=" ".join(words[start:middle]), ending=" ".join(words[middle:end])
        )
        number, start = number + 1, end


def _item(passage: Passage, endings: dict[str, list[str]], config: ContinuationConfig) -> Item | None:
    """Return one item, or None where the other documents do not offer enough different endings."""

    def draw(*parts: Any) -> int:
        return _draw(config.seed, passage.document.source, passage.document.id, passage.number, *parts)

    others = sorted((other for other in endings if other != passage.document.id), key=lambda o: draw("other", o))
    choices = [passage.ending]
    for other in others:
        candidate = endings[other][draw("passage", other) % len(endings[other])]
        if candidate not in choices:
            choices.append(candidate)
        if len(choices) == config.choices:
            break
    if len(choices) < config.choices:
        return None
    order = sorted(range(len(choices)), key=lambda place: draw("place", place))
    return {
        "source": passage.document.source,
        "document": passage.document.id,
        "passage": passage.context,
        "endings": [choices[place] for place in order],
        "label": order.index(0),
    }


def _take(words: list[str], start: int | None, num_bytes: int) -> int | None:
    """Return where the words from `start` on reach `num_bytes`, or None if they never do."""
    if start is None:
        return None
    total = -1
    for place in range(start, len(words)):
        total += 1 + len(words[place].encode("utf-8"))
        if total >= num_bytes:
            return place + 1
    return None


def _draw(*parts: Any) -> int:
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:8], "big")
