"""Find an architecture by name or import path. Torch-free.

An architecture is a module with `build(config: LlamaConfig) -> torch.nn.Module`, and beside it a torch-free module of the same
name plus `_config` with `parameters(config) -> int` and `flops_per_token(config, *, sequence_length) -> int`.
"""

import hashlib
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from modalities.errors import Invalid
from modalities.models.llama_config import LlamaConfig

BUILT_IN = {"llama": "modalities.models.llama", "dual_path": "modalities.models.dual_path"}


def counts_module(config: LlamaConfig) -> ModuleType:
    """Import the torch-free side of an architecture."""
    return _import(_path(config) + "_config")


def model_module(config: LlamaConfig) -> ModuleType:
    """Import the architecture itself, and torch with it."""
    return _import(_path(config))


def source_digest(config: LlamaConfig) -> str | None:
    """Return the hash of the source of a user's architecture; None for those that ship."""
    if config.architecture in BUILT_IN:
        return None
    digest = hashlib.sha256()
    for name in (config.architecture, config.architecture + "_config"):
        try:
            spec = importlib.util.find_spec(name)
        except ImportError:
            spec = None
        if spec is None or spec.origin is None:
            raise Invalid(
                "architecture",
                f"expected {', '.join(BUILT_IN)} or a module that can be imported, got {config.architecture!r}, and there is no "
                f"module {name}; put it on PYTHONPATH",
            )
        digest.update(Path(spec.origin).read_bytes())
    return digest.hexdigest()[:32]


def _path(config: LlamaConfig) -> str:
    return BUILT_IN.get(config.architecture, config.architecture)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            raise Invalid(
                "architecture", f"expected an importable module, got {name!r}; put it on PYTHONPATH"
            ) from None
        raise
