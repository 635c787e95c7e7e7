"""Conversion streams: peak memory does not follow the size of the model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_peak_memory_is_bounded(tmp_path: Path) -> None:
    """1.5 GiB of weights, largest tensor 125 MiB, about 300 MiB for torch and transformers themselves."""
    command = [sys.executable, str(ROOT / "benchmarks" / "conversion.py"), "--gib", "1.5", "--folder", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["bytes"] > 1.5 * 2**30
    assert row["peak_bytes"] < 1.1 * 2**30
