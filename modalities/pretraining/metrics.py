"""What is said while training: one JSON line per logged step in `metrics.jsonl`, the same as TensorBoard events.

| key | meaning |
|---|---|
| step, tokens | steps and tokens done |
| loss | cross-entropy of this step in nats per token, over all ranks; a function of the step alone |
| loss_by_source | the same per source |
| grad_norm, learning_rate | of this step; the norm before clipping |
| tokens_per_second | since the line before, in this process |
| mfu | model FLOPs (`models/*_config.py`) per second over world size times peak: declared on known GPUs, measured on CPU |
| data_seconds | waited for data since the line before |
| memory_bytes | peak of this process so far; on GPU, of the device |
| skipped | true if the update was skipped |
| validation | instead of the above: figures per source |
"""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

PEAKS = {
    "H200": 989.4e12,
    "H100": 989.4e12,
    "GH200": 989.4e12,
    "A100": 312e12,
    "B200": 2250e12,
    "GB200": 2500e12,
}
"""Dense bfloat16 FLOP/s by a part of the device's name."""


class MetricsFile:
    """`metrics.jsonl`, cut back to the step that a resume begins at; and TensorBoard beside it."""

    def __init__(self, folder: Path, *, step: int, tensorboard: bool) -> None:
        self.path = folder / "metrics.jsonl"
        _keep_until(self.path, step)
        self._file = self.path.open("a", encoding="utf-8")
        self._board: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, line: dict[str, Any]) -> None:
        """Append one line."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in _flat(line):
                self._board.add_scalar(name, value, line["step"])

    def close(self) -> None:
        """Close both."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def _keep_until(path: Path, step: int) -> None:
    """Drop lines beyond `step`, and a last line that was not written to its end."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            data = json.loads(line)
        except ValueError:
            break
        if not line.endswith("\n") or data["step"] > step:
            break
        kept.append(line)
    path.write_text("".join(kept), encoding="utf-8")


def _flat(line: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found = []
    for name, value in line.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name}/")
        elif name != "step" and value is not None:
            found.append((prefix + name, float(value)))
    return found


class Clock:
    """Throughput since the line before, of this process alone: what a resumed run did before does not count."""

    def __init__(self, *, tokens_per_step: int, flops_per_token: int, peak: float) -> None:
        self._tokens_per_step, self._flops_per_token, self._peak = tokens_per_step, flops_per_token, peak
        self._since = time.perf_counter()
        self._steps = 0
        self._data_seconds = 0.0
        self.total_steps = 0
        self.total_seconds = 0.0

    def step(self, *, data_seconds: float) -> None:
        """Count a step."""
        self._steps += 1
        self._data_seconds += data_seconds

    def pause(self, seconds: float) -> None:
        """Leave out time that went into validation or a boundary checkpoint."""
        self._since += seconds

    def lap(self) -> dict[str, float]:
        """Return the figures since the last call."""
        seconds = max(1e-9, time.perf_counter() - self._since)
        rate = self._steps * self._tokens_per_step / seconds
        line = {
            "tokens_per_second": rate,
            "mfu": rate * self._flops_per_token / self._peak,
            "data_seconds": self._data_seconds,
            "seconds": seconds,
        }
        self.total_steps += self._steps
        self.total_seconds += seconds
        self._since, self._steps, self._data_seconds = time.perf_counter(), 0, 0.0
        return line


def peak_flops(device: torch.device, *, threads: int) -> tuple[float, str]:
    """Return FLOP/s of one rank at best, and where the figure is from."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for part in sorted(PEAKS, key=len, reverse=True):
            if part in name:
                return PEAKS[part], f"{name}, dense bfloat16"
    size, best = 1024, 0.0
    a, b = torch.ones(size, size, device=device), torch.ones(size, size, device=device)
    for _ in range(5):
        begin = time.perf_counter()
        (a @ b)[0, 0].item()
        best = max(best, 2 * size**3 / (time.perf_counter() - begin))
    return best, f"measured, {size}^3 float32 product, {threads} threads"


def memory_bytes(device: torch.device) -> int:
    """Return the peak memory so far."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
