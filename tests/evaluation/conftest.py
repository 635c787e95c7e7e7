"""Small models that learnt a text, held-out documents, tokenizers and work objects."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from modalities import checkpoint
from modalities.config import plain
from modalities.conversion.config import ConversionConfig, ConversionSection
from modalities.conversion.stage import run as convert
from modalities.manifest import Manifest
from modalities.models import architectures
from modalities.models.initialisation import initialise
from modalities.models.llama_config import LlamaConfig
from modalities.work import Upstream, Work

END = "<|endoftext|>"
WORDS = {
    "birds": "the robin sang above its nest while a heron flew over the lake and every feather shone in early light",
    "ships": "an old vessel left harbour under full sail with cargo of salt and timber bound for distant northern ports",
}


def text_of(source: str, number: int, num_words: int) -> str:
    """Return a text of pseudo-random words of a source, the same each time; documents favour different words."""
    words, state, out = WORDS[source].split(), number * 7919 + 13, []
    for _ in range(num_words):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(words[(state >> 16) % 5 + 3 * (number % 5)] if state % 3 else words[(state >> 16) % len(words)])
    return " ".join(out)


def upstream(folder: Path, node: str, info: Mapping[str, Any], units: tuple[Upstream, ...] = ()) -> Upstream:
    """Return a folder as a finished instance."""
    manifest = Manifest(
        node=node,
        key=f"key-of-{node}",
        label=node,
        version=1,
        section={},
        upstream={},
        content=f"content-{node}",
        info=info,
    )
    return Upstream(folder=folder, manifest=manifest, units=units)


@pytest.fixture
def make_text() -> Callable[[str, int, int], str]:
    """The text generator."""
    return text_of


@pytest.fixture
def make_upstream() -> Callable[..., Upstream]:
    """The maker of finished instances."""
    return upstream


@pytest.fixture
def make_heldout(tmp_path: Path) -> Callable[[Sequence[tuple[str, str, str | None]]], Upstream]:
    """Return a function from (source, text, language) to the instance of held-out documents."""

    def make(documents: Sequence[tuple[str, str, str | None]], name: str = "heldout") -> Upstream:
        folder = tmp_path / name
        folder.mkdir()
        rows = [
            {
                "source": source,
                "unit": "u",
                "row": row,
                "id": f"{source}#{row}",
                "text": text,
                "language": language,
                "text_bytes": len(text.encode()),
            }
            for row, (source, text, language) in enumerate(documents)
        ]
        schema = pa.schema(
            [
                ("source", pa.string()),
                ("unit", pa.string()),
                ("row", pa.int64()),
                ("id", pa.string()),
                ("text", pa.large_string()),
                ("language", pa.string()),
                ("text_bytes", pa.int64()),
            ]
        )
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "documents.parquet", row_group_size=4)
        return upstream(folder, "heldout", {})

    return make


@pytest.fixture
def heldout(make_heldout: Any) -> Upstream:
    """Six documents of two sources, one empty, one longer than the context."""
    return make_heldout(
        [
            ("birds", text_of("birds", 1, 20), "en"),
            ("birds", text_of("birds", 2, 300), "en"),
            ("birds", "Die schöne Möwe \N{BIRD} fliegt.", "de"),
            ("ships", text_of("ships", 3, 60), None),
            ("ships", "", "en"),
            ("ships", f"literal {END} in a text", "en"),
        ]
    )


@pytest.fixture
def tokenizer(tmp_path: Path) -> Upstream:
    """A byte-level BPE of 300 ids as `tokenization.tokenizer` writes it."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([text_of(source, 0, 400) for source in WORDS], trainer)
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    info = {"vocab_size": made.get_vocab_size(), "end_of_document_id": 0, "begin_of_document_id": None}
    return upstream(folder, "tokenization.tokenizer", info)


@pytest.fixture
def config() -> LlamaConfig:
    """A model small enough to train within a test."""
    return LlamaConfig(dim=48, layers=2, heads=4, kv_heads=2, head_dim=12, ffn_dim=96, vocab_size=304)


@pytest.fixture
def pretraining(tmp_path: Path, config: LlamaConfig) -> Upstream:
    """A checkpoint of random weights, large enough to be far from uniform; sequences of 64."""
    model = architectures.model_module(config).build(config)
    initialise(model, config, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.ndim > 1 else 1)
    return save_model(tmp_path / "pretraining", model, config)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Upstream]:
    """The writer of checkpoints."""
    return save_model


def save_model(folder: Path, model: torch.nn.Module, config: LlamaConfig, *, sequence_length: int = 64) -> Upstream:
    """Write a model as a pretraining instance."""
    folder.mkdir()
    progress = checkpoint.Progress(step=7, tokens_seen=7_000, updates=7, model=config, numerics={})
    tensors = {checkpoint.MODEL + name: p.detach() for name, p in model.named_parameters()}
    checkpoint.save(folder / "checkpoint", tensors, progress)
    info = {"model": plain(config), "sequence_length": sequence_length, "step": 7}
    return upstream(folder, "pretraining", info)


@pytest.fixture
def make_work(tmp_path: Path) -> Callable[..., Work[Any]]:
    """Return a function that makes work objects in numbered folders."""

    def make(section: Any, **inputs: Upstream) -> Work[Any]:
        number = sum(1 for _ in tmp_path.glob("work-*"))
        folder = tmp_path / f"work-{number}"
        folder.mkdir()
        return Work(
            node="evaluation",
            key="k",
            label="evaluation(7)",
            section=section,
            inputs=inputs,
            folder=folder,
            cache=tmp_path,
        )

    return make


@pytest.fixture
def conversion(pretraining: Upstream, tokenizer: Upstream, make_work: Any) -> Upstream:
    """The converted model."""
    return convert_model(pretraining, tokenizer, make_work)


@pytest.fixture
def to_hugging_face() -> Callable[..., Upstream]:
    """The converter."""
    return convert_model


def convert_model(trained: Upstream, tokenizer: Upstream, make_work: Any) -> Upstream:
    """Convert a checkpoint."""
    work = make_work(ConversionSection(config=ConversionConfig(), step=7), pretraining=trained, tokenizer=tokenizer)
    result = convert(work)
    return upstream(work.folder, "conversion", result.info)
