"""JSONL straight to a token shard, for text that needs no filtering: one document per line, strict.

The same encoding, verification and shard as the stage. A line that is no JSON object with a text stops it and is named; no
line is skipped, an empty text is a document. Memory: a few blocks of `BATCH_BYTES`, or one line if that is longer.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from modalities.errors import InputError
from modalities.tokenization.encoding import (
    BATCH_BYTES,
    Bounds,
    Encoder,
    MismatchError,
    Reference,
    Verifier,
    file_hash,
    num_ids,
    open_encoder,
    surround,
)
from modalities.tokens import ShardWriter, Sidecar, token_dtype


def encode_jsonl(
    path: Path,
    out: Path,
    *,
    tokenizer: Path,
    end_of_document: str = "<|endoftext|>",
    field: str = "text",
    verify_share: float = 0.001,
) -> Sidecar:
    """Write the shard `out` of a JSONL file. `tokenizer`: a tokenizer.json. Special tokens in texts are text."""
    reference = Reference(tokenizer, special_in_text=False)
    end = reference.tokenizer.token_to_id(end_of_document)
    if end is None:
        raise InputError(f"{tokenizer}: expected the token {end_of_document!r}, got none; name one that it has")
    encoder, why = open_encoder(tokenizer, special_in_text=False)
    digest, bounds = file_hash(tokenizer), Bounds(before=None, after=end)
    dtype = token_dtype(num_ids(reference.tokenizer))
    attempts: tuple[tuple[Encoder, float], ...] = ((encoder, verify_share if why is None else 0.0), (reference, 0.0))
    for engine, share in attempts:
        verifier = Verifier(lambda: reference, share=share)
        try:
            with ShardWriter(out, dtype=dtype, tokenizer=digest, end_of_document=end) as writer:
                done = 0
                for texts in _read_texts(path, field):
                    encoded = engine.encode(texts)
                    verifier.check(texts, encoded, first=done)
                    writer.write(*surround(encoded, bounds, dtype))
                    done += len(texts)
                return writer.finish()
        except MismatchError:
            continue
    raise AssertionError("tokenizers is not compared with itself")


def _read_texts(path: Path, field: str) -> Iterator[list[str]]:
    record = msgspec.defstruct("Record", [("text", str)], rename={"text": field}, gc=False)
    decoder: Any = msgspec.json.Decoder(record)
    start = 0
    for block in _read_blocks(path):
        try:
            records = decoder.decode_lines(block)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            records = _decode_one_by_one(block, decoder, path, _line_at(path, start))
        start += len(block)
        yield [record.text for record in records]


def _line_at(path: Path, end: int) -> int:
    """Return the number of the line that starts at byte `end`. Lines are counted for an error alone: it takes time."""
    line = 1
    with path.open("rb", buffering=0) as file:
        while end > 0 and (block := file.read(min(end, 1 << 22))):
            line += block.count(b"\n")
            end -= len(block)
    return line


def _read_blocks(path: Path) -> Iterator[bytes]:
    """Yield whole lines, about `BATCH_BYTES` at a time."""
    with path.open("rb", buffering=0) as file:
        while block := file.read(BATCH_BYTES):
            rest = b"" if block.endswith(b"\n") else _rest_of_line(file)
            yield block + rest


def _rest_of_line(file: Any) -> bytes:
    pieces = []
    while piece := file.read(1 << 16):
        end = piece.find(b"\n") + 1
        if end:
            file.seek(end - len(piece), 1)
            pieces.append(piece[:end])
            break
        pieces.append(piece)
    return b"".join(pieces)


def _decode_one_by_one(block: bytes, decoder: Any, path: Path, first: int) -> list[Any]:
    """Decode what failed as a block; raise `InputError` for the first bad line. Blank lines are no documents."""
    records = []
    for number, line in enumerate(block.split(b"\n"), start=first):
        if line.strip():
            try:
                records.append(decoder.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise InputError(
                    f"{path}:{number}: expected a JSON object with a text, got {error}; mend the line"
                ) from None
    return records
