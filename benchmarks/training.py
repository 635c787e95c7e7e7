"""Training steps on one CPU thread: ours beside transformers' LlamaForCausalLM, interleaved in one run, in process CPU time.

`python benchmarks/training.py [--rounds 4] [--compile] [--shape 19m|demo]`. A full step: forward, loss, backward, clip,
AdamW, zero grad. Each row is a JSON line; the last line holds the ratios.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from modalities.models import llama
from modalities.models.initialisation import initialise
from modalities.models.llama_config import LlamaConfig, flops_per_token, parameters
from modalities.pretraining.config import OptimizerConfig
from modalities.pretraining.loss import TokenLoss
from modalities.pretraining.optimizer import Optimizer


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model and its batch."""

    model: LlamaConfig
    sequences: int
    length: int


SHAPES = {
    "19m": Shape(
        LlamaConfig(dim=384, layers=8, heads=6, kv_heads=2, head_dim=64, ffn_dim=1024, vocab_size=16384), 2, 512
    ),
    "demo": Shape(
        LlamaConfig(dim=128, layers=4, heads=4, kv_heads=2, head_dim=32, ffn_dim=384, vocab_size=4096), 8, 256
    ),
}
Step = Callable[[torch.Tensor], Any]


def ours(shape: Shape, *, compile: str) -> Step:
    """Return our step: loss in pieces, blocks or the whole function compiled if asked."""
    config = shape.model
    model = llama.build(config)
    initialise(model, config, seed=0)
    optimizer = Optimizer(model, OptimizerConfig())
    assert config.vocab_size is not None
    piece = max(64, (8 << 20) // (4 * config.vocab_size))
    if compile == "blocks":
        for block in model.layers.values():
            block.compile(fullgraph=True)
    elif compile == "model":
        model.compile()

    def step(tokens: torch.Tensor) -> None:
        method: Any = "plain" if compile == "model" else "pieces"
        loss = TokenLoss(tokens[:, 1:], scale=1 / tokens[:, 1:].numel(), method=method, piece_tokens=piece, z_loss=None)
        model(tokens[:, :-1], loss=loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(1e-3)

    return step


def transformers_llama(shape: Shape, *, compile: str) -> Step:
    """Return the step of transformers' model of the same shape."""
    import transformers

    config = shape.model
    model: Any = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=config.dim, num_hidden_layers=config.layers, num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads, intermediate_size=config.ffn_dim, vocab_size=config.vocab_size,
            tie_word_embeddings=True, use_cache=False, attn_implementation="sdpa",
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        logits = model(tokens[:, :-1]).logits
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    function = torch.compile(loss_of) if compile == "model" else loss_of

    def step(tokens: torch.Tensor) -> None:
        function(tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def peak() -> float:
    """Return FLOP/s of a 1024^3 float32 product, by CPU time."""
    a = torch.ones(1024, 1024)
    best = 0.0
    for _ in range(3):
        begin = time.process_time()
        a @ a
        best = max(best, 2 * 1024**3 / (time.process_time() - begin))
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--shape", choices=SHAPES, default="19m")
    parser.add_argument("--compile", action="store_true", help="also the compiled variants")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shape = SHAPES[arguments.shape]
    steps = {"ours eager": ours(shape, compile="none"), "transformers eager": transformers_llama(shape, compile="none")}
    if arguments.compile:
        steps |= {
            "ours compiled blocks": ours(shape, compile="blocks"),
            "ours compiled": ours(shape, compile="model"),
            "transformers compiled": transformers_llama(shape, compile="model"),
        }
    assert shape.model.vocab_size is not None
    tokens = torch.randint(0, shape.model.vocab_size, (shape.sequences, shape.length + 1))
    best = {name: float("inf") for name in steps}
    for step in steps.values():
        step(tokens)
    flops_peak = 0.0
    for _ in range(arguments.rounds):
        for name, step in steps.items():
            flops_peak = max(flops_peak, peak())
            begin = time.process_time()
            step(tokens)
            best[name] = min(best[name], time.process_time() - begin)
    per_step = shape.sequences * shape.length
    flops = flops_per_token(shape.model, sequence_length=shape.length)
    for name, seconds in best.items():
        rate = per_step / seconds
        print(
            json.dumps(
                {"name": name, "tokens_per_cpu_second": round(rate, 1), "mfu": round(rate * flops / flops_peak, 3)}
            )
        )
    summary = {
        "name": "training", "shape": arguments.shape, "parameters": parameters(shape.model), "unit": "tokens per CPU-second",
        "ours": per_step / best["ours eager"], "peer": per_step / best["transformers eager"],
        "ratio_eager": best["transformers eager"] / best["ours eager"], "torch": torch.__version__,
    }  # fmt: skip
    if arguments.compile:
        fastest = min(best["ours compiled"], best["ours compiled blocks"])
        summary["ratio_compiled"] = best["transformers compiled"] / fastest
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
