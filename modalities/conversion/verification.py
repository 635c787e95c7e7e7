"""Bit-equality of our model and the class that transformers fills from the written files, in float32 on the CPU.

Block by block: both sides get the same hidden states, the output must be `torch.equal`, and goes into the next block. One
block of one side is in memory at a time, so that a model of any size can be checked. A model that fits is run as a whole
too, through `AutoModelForCausalLM.from_pretrained`. Attention is pinned to `sdpa`, which ours uses.
"""

import contextlib
import ctypes
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from modalities.errors import StoreError
from modalities.models import architectures
from modalities.models.llama_config import LlamaConfig, parameters

ATTENTION = "sdpa"
WHOLE_MODEL_BYTES = 1 << 30
"""Up to this size (both models, float32) the whole model is run too."""
SEQUENCES, MOST_TOKENS, SEED = 2, 128, 0

Read = Callable[[str], Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """What was compared."""

    tokens: int
    blocks: int
    whole_model: bool


def verify_forward(
    folder: Path, config: LlamaConfig, read: Read, *, dtype: torch.dtype, sequence_length: int
) -> Checked:
    """Raise `StoreError` unless hidden states and logits are equal bit for bit.

    `read` returns a tensor of the checkpoint; it is rounded to `dtype` first, as the written one was.
    """
    length = min(sequence_length, MOST_TOKENS)
    generator = torch.Generator().manual_seed(SEED)
    assert config.vocab_size is not None
    tokens = torch.randint(config.vocab_size, (SEQUENCES, length), generator=generator)

    def ours(name: str) -> Tensor:
        return read(name).to(dtype).float()

    whole = 2 * 4 * parameters(config) <= WHOLE_MODEL_BYTES
    with torch.inference_mode():
        _compare_blocks(folder, config, ours, tokens)
        if whole:
            _compare_whole(folder, config, ours, tokens)
    return Checked(tokens=tokens.numel(), blocks=config.layers, whole_model=whole)


def _compare_blocks(folder: Path, config: LlamaConfig, ours: Read, tokens: Tensor) -> None:
    with torch.device("meta"):
        own: Any = architectures.model_module(config).build(config)
        theirs: Any = _hf_class(folder)
    context = own.context(tokens.shape[1], tokens.device, None)
    written = _Files(folder)
    module = architectures.model_module(config)
    positions = torch.arange(tokens.shape[1])[None]
    tables = type(theirs.model.rotary_emb)(theirs.config)(torch.empty(1, dtype=torch.float32), positions)
    x = _embed(ours("embed_tokens.weight"), tokens)
    _same(x, _embed(written.read(module.hf_name("embed_tokens.weight")), tokens), "embed_tokens")
    for number in range(config.layers):
        prefix = f"layers.{number}."
        with _filled(own.layers[str(number)], prefix, ours) as block:
            expected = block(x, context.cos, context.sin, None)
        with _filled(theirs.model.layers[number], module.hf_name(prefix), written.read) as block:
            got = block(x, attention_mask=None, position_ids=positions, position_embeddings=tables)
        _same(expected, got[0] if isinstance(got, tuple) else got, prefix.rstrip("."))
        x = expected
    with _filled(own.norm, "norm.", ours) as norm:
        expected = norm(x)
    with _filled(theirs.model.norm, module.hf_name("norm."), written.read) as norm:
        _same(expected, norm(x), "norm")
    head = "embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"
    logits = nn.functional.linear(expected, ours(head))
    _same(logits, nn.functional.linear(expected, written.read(module.hf_name(head))), "lm_head")


def _embed(weight: Tensor, tokens: Tensor) -> Tensor:
    return nn.functional.embedding(tokens, weight)


@contextlib.contextmanager
def _filled(block: nn.Module, prefix: str, read: Read) -> Iterator[nn.Module]:
    """Fill a block that is on the meta device, and empty it again."""
    block.load_state_dict({name: read(prefix + name) for name, _ in block.named_parameters()}, assign=True)
    yield block.eval()
    block.to("meta")
    _trim_heap()


def _trim_heap() -> None:
    """Give freed memory back: glibc keeps freed tensors of up to 32 MB, and over many blocks that adds up to the whole model."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _compare_whole(folder: Path, config: LlamaConfig, ours: Read, tokens: Tensor) -> None:
    from transformers import AutoModelForCausalLM

    own: nn.Module = architectures.model_module(config).build(config)
    for name, parameter in own.named_parameters():
        parameter.copy_(ours(name))
    expected = own.eval()(tokens)
    del own
    theirs: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=ATTENTION, local_files_only=True
    )
    _same(expected, theirs.eval()(tokens, use_cache=False).logits, "logits")


def _hf_class(folder: Path) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    return auto.from_config(config, dtype=torch.float32, attn_implementation=ATTENTION)


def _same(ours: Tensor, theirs: Tensor, where: str) -> None:
    if not torch.isfinite(ours).all():
        raise StoreError(
            f"conversion: {where}: expected finite values, got others; the training diverged, see its loss curve"
        )
    if not torch.equal(ours, theirs):
        worst = float((ours - theirs).abs().max())
        raise StoreError(
            f"conversion: {where}: expected outputs equal bit for bit, got a difference of {worst:g}; "
            "the written model is not the trained one, report this as a bug"
        )


class _Files:
    """The written tensors, by Hugging Face's names, as float32."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self._places: dict[str, Path] = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as reader:
                self._places |= dict.fromkeys(reader.keys(), file)

    def read(self, name: str) -> Tensor:
        """Return one tensor as a copy, so that the file is not left mapped."""
        from safetensors import safe_open

        with safe_open(self._places[name], framework="pt") as reader:
            tensor: Tensor = reader.get_tensor(name)
        return tensor.to(torch.float32, copy=True)
