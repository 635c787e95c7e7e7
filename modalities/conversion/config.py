"""What `conversion` can be told. Imports neither torch nor transformers."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from modalities.config import key
from modalities.errors import Invalid

VERSIONS = {"conversion": 1}

RESULT_PACKAGES = ("transformers", "safetensors")
"""Packages whose version changes the files: the first writes the config, the second the weights."""

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionConfig:
    """From a checkpoint to a stock Hugging Face directory."""

    dtype: Dtype = key("float32", help="Data type of the written weights; anything but float32 rounds them.")
    max_shard_bytes: int = key(
        2_000_000_000, help="Largest size of one safetensors file; a larger tensor gets a file alone."
    )
    steps: Literal["last", "all"] = key("last", kind="runtime", help="Which boundary steps are converted.")
    title: str | None = key(None, help="Heading of the model card; by default made from the size and the step.")
    licence: str | None = key(None, help="Licence of the weights for the model card, as an SPDX identifier or `other`.")
    notes: str = key("", help="Text that is added to the model card as it is, such as intended use and known limits.")
    threads: int = key(1, kind="numerics", help="CPU threads of the verification.")

    def __post_init__(self) -> None:
        if self.max_shard_bytes < 1_000_000:
            raise Invalid("max_shard_bytes", f"expected at least 1000000 (bytes), got {self.max_shard_bytes}; raise it")
        if self.threads < 1:
            raise Invalid("threads", f"expected at least 1, got {self.threads}; write 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionSection:
    """What one conversion reads."""

    config: ConversionConfig
    step: int = key(help="The boundary step whose checkpoint is converted.")
    notes: dict[str, Any] = key(
        factory=dict, help="Data notes for the model card, such as source -> licence and provenance."
    )


def section(config: ConversionConfig, step: int, notes: Mapping[str, Any]) -> ConversionSection:
    """Return what the conversion of the checkpoint at `step` reads; `notes` is JSON about the data."""
    return ConversionSection(config=config, step=step, notes=dict(notes))
