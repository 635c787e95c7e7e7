"""From a checkpoint to a directory that stock `transformers` loads, verified bit for bit.

Tensors stream one by one, so memory is 2 GiB plus the largest tensor whatever the model's size; no GPU, no process group, no
remote code. The folder holds `config.json`, `generation_config.json`, (sharded) safetensors, the tokenizer's files and a model
card.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from modalities.checkpoint import load_weights
from modalities.conversion.card import model_card
from modalities.conversion.config import ConversionSection
from modalities.conversion.layout import check_stock, generation_config, hf_config, ordered_shapes
from modalities.conversion.verification import verify_forward
from modalities.conversion.weights import verify_weights, write_weights
from modalities.errors import InputError, StoreError
from modalities.manifest import write_json, write_text
from modalities.models import architectures
from modalities.models.llama_config import LlamaConfig
from modalities.work import Result, Upstream, Work, digest_of

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "chat_template.jinja",
)


def run(work: Work[ConversionSection]) -> Result:
    """Write and verify the directory. Inputs: pretraining, tokenizer."""
    trained, tokenizer, options = work.inputs["pretraining"], work.inputs["tokenizer"], work.section.config
    torch.set_num_threads(options.threads)
    weights = load_weights(trained.folder)
    config = weights.progress.model
    check_stock(config)
    _check_vocabulary(config, tokenizer)
    _check_names(config, weights.names(), trained.folder)
    dtype = getattr(torch, options.dtype)
    module = architectures.model_module(config)
    shapes = ordered_shapes(config)
    own = {module.hf_name(name): name for name in shapes}
    written = write_weights(
        work.folder,
        lambda name: weights.read(own[name]),
        {name: shapes[own[name]] for name in own},
        dtype=dtype,
        max_shard_bytes=options.max_shard_bytes,
        progress=lambda done, total: work.progress.update(done, total, unit="bytes"),
    )
    verify_weights(work.folder, written)
    context = int(trained.manifest.info["sequence_length"])
    hf = _write_configs(work.folder, config, tokenizer, context=context, dtype=options.dtype)
    _copy_tokenizer(tokenizer.folder, work.folder)
    checked = verify_forward(work.folder, config, weights.read, dtype=dtype, sequence_length=context)
    write_text(work.folder / "README.md", model_card(work.section, config, work.inputs, checked, context=context))
    return Result(
        content=digest_of(hf, dict(written.digests), tokenizer.content),
        counts={"tensors": len(written.digests), "weight_bytes": written.num_bytes},
        info={
            "class": hf["architectures"][0],
            "dtype": options.dtype,
            "files": sorted(set(written.files.values())),
            "tensors": dict(written.digests),
            "verified": {"tokens": checked.tokens, "blocks": checked.blocks, "whole_model": checked.whole_model},
        },
        numerics={"threads": options.threads},
    )


def _check_vocabulary(config: LlamaConfig, tokenizer: Upstream) -> None:
    ids = tokenizer.manifest.info["vocab_size"]
    if config.vocab_size is None or ids > config.vocab_size:
        raise InputError(
            f"model.vocab_size: expected at least the tokenizer's {ids} ids, got {config.vocab_size} embeddings; "
            "convert with the tokenizer that the model was trained with"
        )


def _check_names(config: LlamaConfig, names: list[str], folder: Path) -> None:
    """Raise `StoreError` unless the checkpoint holds the tensors of its config, and no others."""
    expected = set(ordered_shapes(config))
    if missing := sorted(expected - set(names)):
        raise StoreError(f"{folder}: expected a tensor {missing[0]}, got none ({len(missing)} missing); train again")
    if strange := sorted(set(names) - expected):
        raise StoreError(
            f"{folder}: expected no tensor {strange[0]}, got one; it belongs to another architecture version"
        )


def _write_configs(
    folder: Path, config: LlamaConfig, tokenizer: Upstream, *, context: int, dtype: str
) -> Mapping[str, Any]:
    begin = tokenizer.manifest.info["begin_of_document_id"]
    end = tokenizer.manifest.info["end_of_document_id"]
    hf = hf_config(config, sequence_length=context, dtype=dtype, begin=begin, end=end)
    write_json(folder / "config.json", hf)
    write_json(folder / "generation_config.json", generation_config(begin=begin, end=end))
    return hf


def _copy_tokenizer(source: Path, target: Path) -> None:
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if not (target / "tokenizer.json").is_file():
        raise StoreError(f"{source / 'tokenizer.json'}: missing; run `modalities store verify`")
