"""Filters of the user, by import path: a function that is given a list of texts and returns as many numbers."""

import hashlib
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from modalities.errors import InputError
from modalities.filtering.config import OwnScore, module_path
from modalities.filtering.memo import Array

Scorer = Callable[[Sequence[str]], Sequence[float]]


def score(texts: Sequence[str], own: OwnScore) -> Array:
    """Return one number per text. Raises `InputError` for whatever the function does wrong."""
    function = load(own)
    try:
        values: Any = function(list(texts))
        scores = np.array([float(value) for value in values], np.float64)
    except Exception as error:
        raise InputError(f"{own.function}: expected a list of numbers, got {type(error).__name__}: {error}") from error
    if len(scores) != len(texts):
        raise InputError(f"{own.function}: expected {len(texts)} numbers for as many texts, got {len(scores)}")
    bad = next((i for i, value in enumerate(scores.tolist()) if math.isnan(value)), None)
    if bad is not None:
        raise InputError(f"{own.function}: expected numbers, got NaN for the text that begins {texts[bad][:40]!r}")
    return scores


def load(own: OwnScore) -> Scorer:
    """Import the function; its source must still be what the plan saw."""
    module_name, _, name = own.function.partition(":")
    path = module_path(module_name)
    if path is None:
        raise InputError(f"{own.function}: expected an importable module, got none of that name")
    found = hashlib.sha256(path.read_bytes()).hexdigest()[:32]
    if found != own.source_hash:
        raise InputError(
            f"{path}: changed since the plan was made (expected {own.source_hash}, got {found}); plan again"
        )
    module = sys.modules.get(module_name)
    if module is None or getattr(module, "__file__", None) != str(path):
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{own.function}: expected a function {name!r} in {path.name}, got {function!r}")
    return function  # type: ignore[no-any-return]
