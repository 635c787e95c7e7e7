"""Say which documents a training step reads, with their source and text."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modalities.errors import StoreError
from modalities.packing.reader import Piece, SequenceReader
from modalities.tokens import Shard
from modalities.work import Upstream


def documents_of_step(
    packing: Upstream,
    tokenization: Mapping[str, Upstream],
    *,
    tokenizer: Path | None,
    step: int,
    sequences_per_step: int,
    data_seed: int,
    max_characters: int = 160,
) -> None:
    """Print the documents of one step: source, place, and the beginning of the text.

    `tokenizer` is the folder of `tokenizer.json`; without it token ids are printed.
    """
    reader = SequenceReader.open(packing, tokenization, data_seed=data_seed)
    for line in lines_of_step(
        reader,
        tokenizer=tokenizer,
        step=step,
        sequences_per_step=sequences_per_step,
        max_characters=max_characters,
    ):
        print(line)


def lines_of_step(
    reader: SequenceReader, *, tokenizer: Path | None, step: int, sequences_per_step: int, max_characters: int = 160
) -> Iterator[str]:
    """Yield one line for the step, one for each sequence, and one for each document in it."""
    import numpy as np

    slots = np.arange(step * sequences_per_step, (step + 1) * sequences_per_step, dtype=np.int64)
    length = reader.index.sequence_length
    yield f"step {step:,}: sequences {slots[0]:,} to {slots[-1]:,} of {length:,} tokens"
    decoder = None if tokenizer is None else _tokenizer(tokenizer)
    shards: dict[Path, Shard] = {}
    sources, epochs, numbers = reader.order.sequences(slots, data_seed=reader.data_seed)
    for slot, source, epoch, number in zip(slots.tolist(), sources, epochs, numbers, strict=True):
        name, size = reader.source_names[source], reader.order.sizes[source]
        yield f"sequence {slot:,}: {name}, number {number:,} of {size:,}, epoch {epoch + 1}"
        for piece in reader.documents_of(slot):
            if piece.shard not in shards:
                shards[piece.shard] = Shard(piece.shard)
            shard = shards[piece.shard]
            tokens = shard.tokens[piece.start : piece.start + piece.length].tolist()
            text = " ".join(map(str, tokens)) if decoder is None else decoder.decode(tokens, skip_special_tokens=False)
            yield f"  {_place(piece, shard)}: {_short(text, max_characters)}"


def _place(piece: Piece, shard: Shard) -> str:
    first, end = (int(offset) for offset in shard.offsets[piece.document : piece.document + 2])
    begin = piece.start - first
    part = "whole" if piece.length == end - first else f"{begin:,} to {begin + piece.length - 1:,} of {end - first:,}"
    return f"document {piece.document:,} of shard {piece.unit[:12]}, {piece.length:,} tokens ({part})"


def _short(text: str, limit: int) -> str:
    """Return the beginning of the text on one line, without characters that a terminal would act on."""
    line = " ".join(text[: 4 * limit].split())
    line = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in line)
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.exists():
        raise StoreError(f"{file}: missing; run `modalities store verify`")
    return Tokenizer.from_file(str(file))
