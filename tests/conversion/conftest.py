"""Small trained models, tokenizers and work objects."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from modalities import checkpoint
from modalities.config import plain
from modalities.conversion.config import ConversionConfig, ConversionSection
from modalities.manifest import Manifest
from modalities.models import architectures
from modalities.models.initialisation import initialise
from modalities.models.llama_config import LlamaConfig
from modalities.work import Upstream, Work

END = "<|endoftext|>"
TEXT = "It is a truth universally acknowledged, that a single man in possession of a good fortune must be in want of a wife. "


def upstream(folder: Path, node: str, info: Mapping[str, Any]) -> Upstream:
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
    return Upstream(folder=folder, manifest=manifest)


@pytest.fixture
def config() -> LlamaConfig:
    """A model with grouped queries."""
    return LlamaConfig(
        dim=48, layers=3, heads=4, kv_heads=2, head_dim=12, ffn_dim=96, vocab_size=320, rope_base=500_000.0
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
    made.train_from_iterator([TEXT], trainer)
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    info = {
        "vocab_size": made.get_vocab_size(),
        "end_of_document_id": made.token_to_id(END),
        "begin_of_document_id": None,
    }
    return upstream(folder, "tokenization.tokenizer", info)


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Upstream]:
    """Return a function that writes a checkpoint of random weights as a pretraining instance."""

    def make(config: LlamaConfig, *, name: str = "pretraining", dtype: torch.dtype = torch.float32) -> Upstream:
        model = architectures.model_module(config).build(config)
        initialise(model, config, seed=3)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:  # norms of one would hide swapped ones
                    parameter.copy_(1 + 0.2 * torch.randn(parameter.shape, generator=generator))
        folder = tmp_path / name
        folder.mkdir()
        progress = checkpoint.Progress(step=7, tokens_seen=7_000, updates=7, model=config, numerics={})
        tensors = {checkpoint.MODEL + n: p.detach().to(dtype) for n, p in model.named_parameters()}
        checkpoint.save(folder / "checkpoint", tensors, progress)
        return upstream(
            folder, "pretraining", {"model": plain(config), "sequence_length": 64, "step": 7, "tokens_seen": 7_000}
        )

    return make


@pytest.fixture
def convert_work(tmp_path: Path, tokenizer: Upstream) -> Callable[..., Work[ConversionSection]]:
    """Return a function that makes the work of a conversion."""

    def make(trained: Upstream, *, name: str = "converted", **keys: Any) -> Work[ConversionSection]:
        folder = tmp_path / name
        folder.mkdir()
        section = ConversionSection(
            config=ConversionConfig(**keys),
            step=7,
            notes={"novels": {"licence": "public domain", "provenance": "a | b", "language": "en"}},
        )
        return Work(
            node="conversion",
            key="k",
            label="conversion(7)",
            section=section,
            inputs={"pretraining": trained, "tokenizer": tokenizer},
            folder=folder,
            cache=tmp_path,
        )

    return make
