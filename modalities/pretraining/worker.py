"""Entry point of one rank under torchrun: `python -m modalities.pretraining.worker <job.json>`."""

import os
import sys
from pathlib import Path

from modalities.manifest import write_json
from modalities.pretraining.stopping import die_with_parent


def main() -> int:
    """Run one rank; rank 0 leaves `summary.json`, a failing rank `error-<rank>.json` beside the job."""
    die_with_parent()
    path = Path(sys.argv[1])
    rank = int(os.environ["RANK"])
    _write_to(path.parent / f"rank-{rank}.log")
    from modalities.pretraining import rank as ranks

    job = ranks.read_job(path)

    def report(step: int, loss: float | None) -> None:
        (path.parent / "progress").write_text(f"{step} {loss}", encoding="utf-8")

    try:
        summary = ranks.run_rank(job, report=report)
    except BaseException as error:
        ranks.write_error(path.parent, error, rank=rank)
        raise
    if rank == 0:
        write_json(path.parent / "summary.json", summary)
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    return 0


def _write_to(log: Path) -> None:
    """Send what this rank prints to a log of its own."""
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())


if __name__ == "__main__":
    sys.exit(main())
