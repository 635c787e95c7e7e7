"""One pool of gloo ranks per world size, for the whole test session."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import pytest

from modalities.models.llama_config import LlamaConfig
from modalities.pretraining.config import NumericsConfig, RuntimeConfig, SegmentSection


class Pool:
    """Ranks that wait for calls."""

    def __init__(self, world_size: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        address = str(Path(self._folder.name) / "socket")
        script = Path(__file__).with_name("ranks.py")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with Listener(address, family="AF_UNIX") as listener:
            arguments = [str(world_size), str(Path(self._folder.name) / "rendezvous"), address]
            self._processes = [
                subprocess.Popen([sys.executable, str(script), str(rank), *arguments], env=environment)
                for rank in range(world_size)
            ]
            found: dict[int, Connection] = {}
            for _ in range(world_size):
                connection = listener.accept()
                found[connection.recv()] = connection
        self._connections = [found[rank] for rank in range(world_size)]

    def call(self, name: str, **keywords: Any) -> list[Any]:
        """Call a function of ranks.py on all ranks and return their results, or fail with the first error."""
        for connection in self._connections:
            connection.send((name, keywords))
        answers = []
        for connection in self._connections:
            assert connection.poll(120), "a rank does not answer"
            answers.append(connection.recv())
        errors = [value for kind, value in answers if kind == "error"]
        assert not errors, errors[0]
        return [value for _, value in answers]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.wait(30)
        self._folder.cleanup()


@pytest.fixture(scope="session")
def pools() -> Iterator[Callable[[int], Pool]]:
    """Return the pool of a world size, started when first asked for."""
    started: dict[int, Pool] = {}

    def get(world_size: int) -> Pool:
        if world_size not in started:
            started[world_size] = Pool(world_size)
        return started[world_size]

    yield get
    for pool in started.values():
        pool.close()


@pytest.fixture
def section() -> SegmentSection:
    """A tiny segment of six steps over eight sequences each."""
    return SegmentSection(
        model=LlamaConfig(dim=32, layers=2, heads=4, kv_heads=4, head_dim=8, ffn_dim=64),
        start_step=0,
        end_step=6,
        sequence_length=24,
        global_batch_sequences=8,
        learning_rate=1e-2,
        warmup_steps=3,
        numerics=NumericsConfig(micro_batch=2),
        runtime=RuntimeConfig(checkpoint_every_seconds=None, tensorboard=False, asynchronous=False),
    )
