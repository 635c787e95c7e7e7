"""Where a suite computes."""

from typing import Any

from modalities.errors import ConfigError
from modalities.evaluation.config import ComputeConfig


def pick_device(compute: ComputeConfig) -> str:
    """Set the number of CPU threads and return the torch device to use."""
    import torch

    torch.set_num_threads(compute.threads)
    if compute.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "evaluation.compute.device: expected a CUDA device, got none on this machine; write auto or cpu"
        )
    if compute.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return compute.device


def record(compute: ComputeConfig, device: str) -> dict[str, Any]:
    """Return the numerics record: what may change the last bits of a result."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {"device": name, "threads": compute.threads, "batch_tokens": compute.batch_tokens}
