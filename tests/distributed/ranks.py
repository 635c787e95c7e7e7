"""One rank of a test pool: connects to the test process, joins the others, and runs what it is told, one call at a time.

Started as `python ranks.py <rank> <world size> <rendezvous file> <address>`; starting costs seconds, a call does not.
"""

import datetime
import importlib.util
import sys
import traceback
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def _pretraining_support() -> Any:
    path = Path(__file__).parents[1] / "pretraining" / "conftest.py"
    spec = importlib.util.spec_from_file_location("pretraining_support", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def train(section: Any, folder: Path, stop_at: int | None = None) -> dict[str, Any]:
    """Run a segment on the made-up reader; `stop_at` asks for a stop at that step."""
    from modalities.errors import ModalitiesError
    from modalities.pretraining.rank import Job, run_rank

    support = _pretraining_support()
    state = folder / "state"

    def report(step: int, loss: float | None) -> None:
        if step == stop_at:
            (state / "stop").touch()

    job = Job(section=section, inputs={}, vocab_size=support.VOCABULARY, folder=folder, state=state)
    try:
        return run_rank(job, report=report, reader=support.MadeUpReader(section.sequence_length))
    except ModalitiesError as error:
        return {"error": type(error).__name__, "message": str(error)}


def state_after_wrapping(section: Any) -> dict[str, Any]:
    """Return names, ties and initial weights of the replica that a section asks for."""
    import dataclasses

    from torch.distributed.tensor import DTensor

    from modalities.pretraining.parallel import connect, replicate

    model = dataclasses.replace(section.model, vocab_size=_pretraining_support().VOCABULARY)
    replica = replicate(model, section.numerics, connect(section.numerics, timeout_seconds=60), seed=section.init_seed)
    named = {n: p.detach() for n, p in replica.model.named_parameters()}
    full = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in named.items()}
    return {
        "names": list(named),
        "tied": replica.model.lm_head.weight is replica.model.embed_tokens.weight,
        "weights": {n: t.clone().numpy() for n, t in full.items()},
    }


CALLS = {"train": train, "state_after_wrapping": state_after_wrapping}


def main() -> None:
    """Serve calls until the test process closes the connection."""
    rank, world_size, rendezvous, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=60),
    )
    with Client(address, family="AF_UNIX") as connection:
        connection.send(rank)
        while True:
            try:
                name, keywords = connection.recv()
            except EOFError:
                return
            try:
                connection.send(("ok", CALLS[name](**keywords)))
            except BaseException:
                connection.send(("error", traceback.format_exc()))


if __name__ == "__main__":
    main()
