"""Where compiled loops are kept between runs, and what to do where nothing can be kept."""

import functools
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any


@functools.cache
def load(name: str, folder: Path | None = None) -> ModuleType:
    """Import a module of compiled loops, keeping machine code in `folder` unless NUMBA_CACHE_DIR says otherwise.

    The first folder of a process counts. Compiling everything takes about 20 s.
    """
    from numba.core import config as numba_config

    config: Any = numba_config  # its names are set at run time

    if not config.CACHE_DIR and folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            config.CACHE_DIR = str(folder)
        except OSError:
            pass  # read-only cache: numba tries its own places next
    return importlib.import_module(f"modalities.filtering.{name}")
