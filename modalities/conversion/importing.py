"""The way back: a Hugging Face Llama or Qwen3 directory as our checkpoint, for continued pretraining.

Tensors are mapped from the safetensors, so memory is little more than the largest of them unless they are cast. There and
back gives the same bytes, if the directory is written in the data type it came in.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modalities import checkpoint
from modalities.conversion.layout import check_stock, ordered_shapes, own_config
from modalities.errors import InputError, StoreError
from modalities.models import architectures
from modalities.models.llama_config import LlamaConfig


def import_model(source: Path, *, target: Path, dtype: torch.dtype | None = torch.float32) -> checkpoint.Progress:
    """Write the model in `source` as a checkpoint `target`, at step 0. `dtype` None keeps the type of each tensor.

    The trainer continues from float32. Raises `InputError`, naming file and tensor, for what does not fit.
    """
    if target.exists():
        raise StoreError(f"{target}: expected nothing there yet, got something; choose another place or remove it")
    path = source / "config.json"
    config = own_config(_read_json(path), what=str(path))
    check_stock(config)
    tensors = dict(_tensors(source, config, dtype))
    progress = checkpoint.Progress(step=0, tokens_seen=0, updates=0, model=config, numerics={"imported": True})
    checkpoint.save(target, {checkpoint.MODEL + name: tensor for name, tensor in tensors.items()}, progress)
    return progress


def _tensors(source: Path, config: LlamaConfig, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    module, files = architectures.model_module(config), _files(source)
    shapes = ordered_shapes(config)
    strange = sorted(set(files) - {module.hf_name(name) for name in shapes} - _ignored(config, module))
    if strange:
        raise InputError(
            f"{files[strange[0]]}: {strange[0]}: expected no such tensor in this model, got one; import another model"
        )
    for name, shape in shapes.items():
        theirs = module.hf_name(name)
        if theirs not in files:
            raise InputError(f"{source}: {theirs}: expected a tensor of shape {shape}, got none; is a file missing?")
        with safe_open(files[theirs], framework="pt") as reader:
            tensor: Tensor = reader.get_tensor(theirs)
        if tuple(tensor.shape) != shape:
            raise InputError(
                f"{files[theirs]}: {theirs}: expected shape {shape} as config.json says, got {tuple(tensor.shape)}; mend one"
            )
        yield name, tensor if dtype is None else tensor.to(dtype)


def _ignored(config: LlamaConfig, module: Any) -> set[str]:
    """Return tensors that repeat others: a tied output layer, and rotary frequencies of old releases."""
    names = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in range(config.layers)}
    return names | ({module.hf_name("lm_head.weight")} if config.tied_embeddings else set())


def _files(source: Path) -> Mapping[str, Path]:
    """Return the file of each tensor."""
    from safetensors import SafetensorError, safe_open

    found: dict[str, Path] = {}
    for file in sorted(source.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as reader:
                found |= dict.fromkeys(reader.keys(), file)
        except SafetensorError as error:
            raise InputError(
                f"{file}: expected a safetensors file, got something else ({error}); copy it again"
            ) from None
    if not found:
        raise InputError(f"{source}: expected *.safetensors files, got none; save the model with safetensors")
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: missing; expected a Hugging Face model directory") from None
    except ValueError as error:
        raise InputError(f"{path}: expected JSON, got something else ({error}); copy it again") from None
    return data
