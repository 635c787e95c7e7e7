"""Conversion of a checkpoint of a few GiB against a plain copy of the same bytes; the last line is one JSON object.

    python benchmarks/conversion.py [--gib 2] [--folder DIR]

Both sides read what the page cache holds and end with fsync. `ours` is reading the checkpoint, writing the weights and reading
them again to compare digests; running both models on a few tokens is shown apart. Peak memory is of a process of its own.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = {"dim": 1024, "heads": 16, "kv_heads": 4, "head_dim": 64, "ffn_dim": 4096, "vocab_size": 32_000}
BLOCK_BYTES = 4 * (1024 * 64 * (2 * 16 + 2 * 4) + 3 * 1024 * 4096 + 2 * 1024)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the checkpoint's weights")
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: a temporary folder)")
    parser.add_argument("--child", type=Path, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        convert(args.child)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        make_checkpoint(folder / "pretraining", layers=max(1, round(args.gib * 2**30 / BLOCK_BYTES)))
        copied = min(copy(folder / "pretraining" / "checkpoint", folder / "copy") for _ in range(2))
        runs = []
        for _ in range(2):
            shutil.rmtree(folder / "converted", ignore_errors=True)
            command = [sys.executable, __file__, "--child", str(folder)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
        best = min(runs, key=lambda run: run["seconds"])
    print(f"verification of the outputs: {best['forward_seconds']:.2f} s")
    row = {
        "name": "conversion",
        "ours": best["seconds"],
        "peer": copied,
        "ratio": best["seconds"] / copied,
        "unit": "seconds",
        "bytes": best["bytes"],
        "peak_bytes": best["peak_bytes"],
    }
    print(json.dumps(row))


def make_checkpoint(folder: Path, *, layers: int) -> None:
    """Write a checkpoint of random weights."""
    import torch

    from modalities import checkpoint
    from modalities.conversion.layout import ordered_shapes
    from modalities.models.llama_config import LlamaConfig

    config = LlamaConfig(layers=layers, **CONFIG)
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    tensors = {
        checkpoint.MODEL + name: torch.randn(shape, generator=generator) * 0.02
        for name, shape in ordered_shapes(config).items()
    }
    checkpoint.save(
        folder / "checkpoint", tensors, checkpoint.Progress(step=1, tokens_seen=1, updates=1, model=config, numerics={})
    )


def copy(source: Path, target: Path) -> float:
    """Copy a folder with fsync; return the seconds."""
    shutil.rmtree(target, ignore_errors=True)
    start = time.perf_counter()
    target.mkdir()
    for file in source.iterdir():
        shutil.copyfile(file, target / file.name)
        handle = os.open(target / file.name, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    return time.perf_counter() - start


def convert(folder: Path) -> None:
    """Convert in this process and print seconds and peak memory."""
    import torch

    from modalities.checkpoint import load_weights
    from modalities.conversion.layout import generation_config, hf_config, ordered_shapes
    from modalities.conversion.verification import verify_forward
    from modalities.conversion.weights import verify_weights, write_weights
    from modalities.manifest import write_json
    from modalities.models.llama import hf_name

    torch.set_num_threads(1)
    target = folder / "converted"
    target.mkdir()
    start = time.perf_counter()
    weights = load_weights(folder / "pretraining")
    config = weights.progress.model
    own = {hf_name(name): name for name in ordered_shapes(config)}
    shapes = {name: ordered_shapes(config)[own[name]] for name in own}
    written = write_weights(
        target,
        lambda name: weights.read(own[name]),
        shapes,
        dtype=torch.float32,
        max_shard_bytes=2_000_000_000,
        progress=lambda done, total: None,
    )
    verify_weights(target, written)
    seconds = time.perf_counter() - start
    write_json(target / "config.json", hf_config(config, sequence_length=64, dtype="float32", begin=None, end=0))
    write_json(target / "generation_config.json", generation_config(begin=None, end=0))
    start = time.perf_counter()
    verify_forward(target, config, weights.read, dtype=torch.float32, sequence_length=64)
    forward = time.perf_counter() - start
    print(
        json.dumps(
            {"seconds": seconds, "forward_seconds": forward, "bytes": written.num_bytes, "peak_bytes": peak_bytes()}
        )
    )


def peak_bytes() -> int:
    """Return this process's peak memory. Not `ru_maxrss`, which a child starts with its parent's value of."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
