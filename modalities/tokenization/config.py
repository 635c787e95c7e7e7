"""Config of tokenization: where the tokenizer comes from, what ends a document, and what each node reads of it."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from modalities.config import key
from modalities.errors import Invalid

VERSIONS = {"tokenization.tokenizer": 1, "tokenization": 1, "tokenization.heldout": 1}
RESULT_PACKAGES = ("tokenizers",)
"""Packages whose version changes ids. gigatoken is not one: its ids are checked to equal those of `tokenizers`."""

IMPORTED_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
"""Files of a tokenizer directory that are read; other files (such as weights) are not looked at."""

SplitPattern = Literal["gpt2", "cl100k", "o200k", "llama3"]
MAX_VOCAB_SIZE = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """How a byte-level BPE tokenizer is trained."""

    vocab_size: int = key(8192, help="Number of ids, special tokens included.")
    special_tokens: tuple[str, ...] = key(
        (), help="Special tokens besides begin and end of document; they get the first ids, in this order."
    )
    sample_bytes: int = key(100_000_000, help="Bytes of text to train on, at most, over all sources.")
    min_frequency: int = key(2, help="How often a pair must occur to be merged.")
    train_on: dict[str, float] = key(
        factory=dict,
        help="Source -> weight in the sample, such as {help: 0.7, novels: 0.3}; empty: all sources by their kept text.",
    )

    def __post_init__(self) -> None:
        if not 256 < self.vocab_size <= MAX_VOCAB_SIZE:
            raise Invalid(
                "vocab_size", f"expected 257 or more (one id for each byte comes first), got {self.vocab_size}"
            )
        if self.sample_bytes <= 0:
            raise Invalid("sample_bytes", f"expected a positive number of bytes, got {self.sample_bytes}")
        if self.min_frequency < 1:
            raise Invalid("min_frequency", f"expected 1 or more, got {self.min_frequency}")
        for name, weight in self.train_on.items():
            if not 0 < weight < float("inf"):
                raise Invalid(
                    f"train_on.{name}", f"expected a positive weight, got {weight}; leave the source out instead"
                )
        if len(set(self.special_tokens)) != len(self.special_tokens) or "" in self.special_tokens:
            raise Invalid("special_tokens", f"expected distinct, non-empty tokens, got {list(self.special_tokens)}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TokenizationConfig:
    """Section `tokenization` of a run."""

    tokenizer: Path | None = key(
        None,
        help="A tokenizer to take: tokenizer.json, a Hugging Face directory, a SentencePiece .model or a tiktoken file "
        "(by content, not by path); none: one is trained.",
        kind="runtime",
    )
    split_pattern: SplitPattern = key(
        "gpt2", help="Pre-tokenization of a trained tokenizer, and of a tiktoken file (which does not say its own)."
    )
    train: TrainingConfig = key(factory=TrainingConfig, help="How a tokenizer is trained when none is given.")
    end_of_document: str = key("<|endoftext|>", help="Token after each document; the tokenizer must have it.")
    begin_of_document: str | None = key(None, help="Token before each document, if any.")
    special_tokens_in_text: Literal["literal", "special"] = key(
        "literal",
        help="What `<|endoftext|>` inside a text means: its characters, or the token, which forges a document end.",
    )
    chat_template: Path | None = key(
        None,
        help="Jinja2 file for documents with `messages` in their metadata; {% generation %} blocks are what is learnt.",
        kind="runtime",
    )
    verify_share: float = key(
        0.001, help="Share of the text that is encoded with `tokenizers` as well and compared.", kind="runtime"
    )
    per_arm: bool = key(
        False, help="Train one tokenizer for each arm of a study instead of one on the baseline's text.", kind="runtime"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.verify_share <= 1:
            raise Invalid("verify_share", f"expected a share between 0 and 1, got {self.verify_share}")
        if not self.end_of_document:
            raise Invalid("end_of_document", "expected a token, got empty text; documents must end in one")
        if self.begin_of_document == "":
            raise Invalid("begin_of_document", "expected a token, got empty text; leave the key out for none")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerSection:
    """What `tokenization.tokenizer` reads."""

    sources: tuple[str, ...] = key(help="Sources whose text is read, in order; none if a tokenizer is imported.")
    train: TrainingConfig | None = key(help="How to train; none if a tokenizer is imported.")
    imported_sha256: str | None = key(help="Content hash of the imported files.")
    chat_template_sha256: str | None = key(help="Content hash of the chat template.")
    split_pattern: SplitPattern | None = key(help="As in the config; none where the imported file says its own.")
    end_of_document: str = key(help="As in the config.")
    begin_of_document: str | None = key(help="As in the config.")
    tokenizer: Path | None = key(None, help="Where the imported tokenizer is.", kind="runtime")
    chat_template: Path | None = key(None, help="Where the chat template is.", kind="runtime")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TokenizationSection:
    """What `tokenization` reads."""

    end_of_document: str = key(help="As in the config.")
    begin_of_document: str | None = key(help="As in the config.")
    special_tokens_in_text: Literal["literal", "special"] = key(help="As in the config.")
    verify_share: float = key(0.001, help="As in the config.", kind="runtime")


HeldoutTokensSection = TokenizationSection


def tokenizer_section(config: TokenizationConfig, sources: Sequence[str]) -> TokenizerSection:
    """Return what `tokenization.tokenizer` reads; `section.sources` names the sources it needs as inputs."""
    imported = config.tokenizer is not None
    chosen = tuple(s for s in sources if not config.train.train_on or s in config.train.train_on)
    return TokenizerSection(
        sources=() if imported else chosen,
        train=None if imported else config.train,
        imported_sha256=None if config.tokenizer is None else hash_files(config.tokenizer),
        chat_template_sha256=None if config.chat_template is None else hash_files(config.chat_template),
        split_pattern=config.split_pattern if config.tokenizer is None or is_tiktoken(config.tokenizer) else None,
        end_of_document=config.end_of_document,
        begin_of_document=config.begin_of_document,
        tokenizer=config.tokenizer,
        chat_template=config.chat_template,
    )


def section(config: TokenizationConfig) -> TokenizationSection:
    """Return what `tokenization` reads; tokenizer and chat template come as an input."""
    return TokenizationSection(
        end_of_document=config.end_of_document,
        begin_of_document=config.begin_of_document,
        special_tokens_in_text=config.special_tokens_in_text,
        verify_share=config.verify_share,
    )


def heldout_section(config: TokenizationConfig) -> HeldoutTokensSection:
    """Return what `tokenization.heldout` reads."""
    return section(config)


def check(config: TokenizationConfig, sources: Sequence[str]) -> None:
    """Raise `Invalid` where the section does not fit the run's sources or the files it names."""
    for name in config.train.train_on:
        if name not in sources:
            raise Invalid(f"train.train_on.{name}", f"expected one of the sources {', '.join(sources)}, got {name!r}")
    if config.tokenizer is None:
        special = {config.end_of_document, *config.train.special_tokens} | {
            config.begin_of_document or config.end_of_document
        }
        if config.train.vocab_size < 256 + len(special):
            needed = 256 + len(special)
            raise Invalid(
                "train.vocab_size",
                f"expected {needed} or more (bytes and special tokens), got {config.train.vocab_size}",
            )
    elif not imported_files(config.tokenizer):
        raise Invalid(
            "tokenizer",
            f"expected a tokenizer file or directory, got {config.tokenizer}, which holds none; mend the path",
        )
    if config.chat_template is not None and not config.chat_template.is_file():
        raise Invalid(
            "chat_template", f"expected a Jinja2 file, got {config.chat_template}, which is not there; mend the path"
        )


def is_tiktoken(path: Path) -> bool:
    """Say whether a tokenizer file (or a directory's) holds tiktoken ranks: lines of base64 and a number."""
    file = vocabulary_file(path)
    if file is None or file.suffix in (".json", ".tiktoken"):
        return file is not None and file.suffix == ".tiktoken"
    with file.open("rb") as stream:
        parts = stream.readline(4096).split()
    return len(parts) == 2 and parts[1].isdigit()


def vocabulary_file(path: Path) -> Path | None:
    """Return the file that holds an imported tokenizer's vocabulary, or None if there is none."""
    files = imported_files(path)
    return files.get("tokenizer.json") or files.get("tokenizer.model") or files.get(path.name)


def imported_files(path: Path) -> Mapping[str, Path]:
    """Return the files that an imported tokenizer consists of, by name; empty if there is no vocabulary among them."""
    if path.is_file():
        return {path.name: path}
    found = {name: path / name for name in IMPORTED_FILES if (path / name).is_file()}
    return found if found.keys() & {"tokenizer.json", "tokenizer.model"} else {}


def hash_files(path: Path) -> str:
    """Return the SHA-256 of a file's content, or of names and contents of a tokenizer directory's files."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    total = hashlib.sha256()
    for name, file in sorted(imported_files(path).items()):
        total.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()
