"""Take a tokenizer from elsewhere: tokenizer.json, a Hugging Face directory, SentencePiece or tiktoken."""

import base64
import binascii
import importlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modalities.errors import InputError
from modalities.tokenization.config import SplitPattern, imported_files, is_tiktoken, vocabulary_file
from modalities.tokenization.training import split_by

COMPANIONS = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_CONTROL, _UNKNOWN, _USER_DEFINED = 3, 2, 4
"""Kinds of SentencePiece pieces."""


def import_into(
    folder: Path, path: Path, *, split_pattern: SplitPattern | None, special_tokens: Sequence[str]
) -> Mapping[str, Any]:
    """Write tokenizer.json and what stands beside it into `folder`; return the tokenizer_config.json that came along.

    A tokenizer.json is copied byte for byte. Special tokens are added only to tiktoken files, which never hold them.
    """
    files, vocabulary = imported_files(path), vocabulary_file(path)
    if vocabulary is None:
        raise InputError(f"{path}: expected a tokenizer file or directory, got none; mend tokenization.tokenizer")
    for name in COMPANIONS:
        if name in files:
            shutil.copyfile(files[name], folder / name)
    out = folder / "tokenizer.json"
    if is_tiktoken(vocabulary):
        _save(read_tiktoken(vocabulary, split_pattern=split_pattern or "cl100k", special_tokens=special_tokens), out)
    elif vocabulary.suffix == ".json":
        shutil.copyfile(vocabulary, out)
    else:
        _save(read_sentencepiece(vocabulary), out)
    config = folder / "tokenizer_config.json"
    return json.loads(config.read_text(encoding="utf-8")) if config.exists() else {}


def _save(tokenizer: Any, out: Path) -> None:
    out.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")


def read_sentencepiece(path: Path) -> Any:
    """Return the `tokenizers.Tokenizer` of a SentencePiece model, through Hugging Face's converter.

    Control and unknown pieces become special tokens.
    """
    from tokenizers import AddedToken

    convert: Any = importlib.import_module("transformers.convert_slow_tokenizer")
    proto = convert.import_protobuf().ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except Exception as error:  # DecodeError of whichever protobuf backend is installed
        raise InputError(f"{path}: expected a SentencePiece model, got {error}; give a .model file") from None
    if not proto.pieces:
        raise InputError(f"{path}: expected a SentencePiece model, got one without pieces; give a .model file")
    unigram = proto.trainer_spec.model_type == 1
    pieces = [(p.piece, p.score) for p in proto.pieces]
    vocab = pieces if unigram else {piece: n for n, (piece, _) in enumerate(pieces)}
    tokenizer = convert.SpmConverter.build_tokenizer_from_spm_proto(proto, vocab, legacy=True)
    special = [p.piece for p in proto.pieces if p.type in (_CONTROL, _UNKNOWN)]
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False, special=True) for piece in special])
    return tokenizer


def read_tiktoken(path: Path, *, split_pattern: SplitPattern, special_tokens: Sequence[str]) -> Any:
    """Return the `tokenizers.Tokenizer` of a tiktoken rank file; special tokens get the ids after the last rank."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    ranks = _read_ranks(path)
    letters = _byte_letters()
    spelt = {token: "".join(letters[byte] for byte in token) for token in ranks}
    vocab = {spelt[token]: rank for token, rank in ranks.items()}
    merges = [(spelt[a], spelt[b]) for token in sorted(ranks, key=ranks.__getitem__) for a, b in _splits(token, ranks)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = split_by(split_pattern)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special_tokens])
    return tokenizer


def _read_ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise InputError(f"{path}:{number}: expected base64 and a rank, got {line[:40]!r}; mend the file") from None
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise InputError(f"{path}: expected a rank for each of the 256 bytes, got none for {missing[0]}; mend the file")
    return ranks


def _splits(token: bytes, ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return the ways to make a token of two others, those of lowest rank first."""
    pairs = ((token[:n], token[n:]) for n in range(1, len(token)))
    return sorted(((a, b) for a, b in pairs if a in ranks and b in ranks), key=lambda p: (ranks[p[0]], ranks[p[1]]))


def _byte_letters() -> list[str]:
    """Return the letter that stands for each byte in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = dict(zip(printable, map(chr, printable), strict=True))
    letters |= {byte: chr(0x100 + n) for n, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]
