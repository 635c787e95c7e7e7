"""Make the three files of config/ablation-demo.yaml from data/demo/austen.jsonl.gz: the same bytes at every call.

    python data/ablation-demo/make.py

passages.jsonl.gz   420 passages of at least 1,200 characters
reordered.jsonl.gz  the same passages in another order: a difference that does not matter
shuffled.jsonl.gz   the same, with the words of every second passage in random order: a difference that does
"""

import gzip
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent / "demo" / "austen.jsonl.gz"
NUM_PASSAGES = 420
MIN_CHARACTERS = 1200
EVERY = 2
"""One passage in so many is shuffled."""


def main() -> None:
    """Write all files."""
    chooser = random.Random(7)
    passages = chooser.sample(list(_passages()), NUM_PASSAGES)
    _write("passages", passages)
    _write("reordered", chooser.sample(passages, NUM_PASSAGES))
    chosen = set(chooser.sample(range(NUM_PASSAGES), NUM_PASSAGES // EVERY))
    _write("shuffled", [_shuffle(p, chooser) if i in chosen else p for i, p in enumerate(passages)])


def _passages() -> Iterator[dict[str, str]]:
    """Cut the documents at paragraphs into pieces of about equal length."""
    with gzip.open(SOURCE, "rt", encoding="utf-8") as file:
        for line in file:
            document = json.loads(line)
            piece: list[str] = []
            number = 0
            for paragraph in document["text"].split("\n"):
                piece.append(paragraph)
                if sum(map(len, piece)) >= MIN_CHARACTERS:
                    yield {"id": f"{document['id']}-{number}", "text": "\n".join(piece)}
                    piece, number = [], number + 1


def _shuffle(passage: dict[str, str], chooser: random.Random) -> dict[str, str]:
    """Move the words about and leave the space between them where it is."""
    parts = re.split(r"(\s+)", passage["text"])
    words = parts[::2]
    chooser.shuffle(words)
    parts[::2] = words
    return passage | {"text": "".join(parts)}


def _write(name: str, passages: list[dict[str, str]]) -> None:
    text = "".join(json.dumps(p, ensure_ascii=False) + "\n" for p in passages)
    (HERE / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode("utf-8"), 9, mtime=0))


if __name__ == "__main__":
    main()
