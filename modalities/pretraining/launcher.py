"""Start the ranks of a training: `python -m modalities.pretraining.launcher <ranks> <job.json>`, which is torchrun with a leash.

On one machine this process becomes torchrun. In a Slurm job with as many nodes as `pretraining.runtime.nodes` it becomes srun,
which starts it once per node (`--step`); there the rendezvous is static, so that ranks follow the order of nodes, and host and
port come from Slurm's step. With several nodes asked for and no such job, all ranks run here.
"""

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from modalities import cluster
from modalities.pretraining.stopping import die_with_parent

FIRST_PORT, NUM_PORTS = 20000, 20000


def main() -> None:
    """Run torchrun in this process, which ends when its parent does; so do the ranks."""
    die_with_parent()
    ranks, path = int(sys.argv[1]), Path(sys.argv[2])
    if "--step" in sys.argv:
        where = _of_step(ranks)
    else:
        nodes = int(json.loads(path.read_text(encoding="utf-8"))["section"]["runtime"]["nodes"])
        if nodes > 1 and cluster.allocated_nodes() == nodes:
            os.execvp("srun", _srun(nodes, sys.argv[1:]))
        where = ["--standalone", f"--nproc-per-node={ranks}"]
    if cluster.job_id() is not None:  # Slurm signals every process; torchrun would end the ranks before they have saved
        _note_sigterm(path.parent / "stop")
        where.append("--signals-to-handle=SIGINT,SIGHUP,SIGQUIT")
    from torch.distributed.run import main as torchrun

    torchrun([*where, "-m", "modalities.pretraining.worker", str(path)])


def _srun(nodes: int, arguments: list[str]) -> list[str]:
    """Return the command that starts this launcher once on each node of the job."""
    step = [
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=1",
        "--mpi=none",
    ]
    # Since Slurm 22.05 a step no longer inherits the CPUs per task of its job, and the job's variable is gone here.
    cpus = cluster.ask("squeue", "-h", "-j", str(cluster.job_id()), "-o", "%C")
    if cpus is not None and cpus.isdigit():
        step.append(f"--cpus-per-task={max(1, int(cpus) // nodes)}")
    return [*step, sys.executable, "-m", "modalities.pretraining.launcher", *arguments, "--step"]


def _of_step(ranks: int) -> list[str]:
    """Return torchrun's arguments on one node of a Slurm step."""
    nodes, node = int(os.environ["SLURM_STEP_NUM_NODES"]), int(os.environ["SLURM_NODEID"])
    assert ranks % nodes == 0, "the config asserts that nodes divide the world size"
    names = cluster.ask("scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"])
    if names is None:
        raise RuntimeError(f"scontrol does not expand {os.environ['SLURM_STEP_NODELIST']!r}")
    head = names.split()[0]
    print(f"node {node} of {nodes}: {os.environ.get('SLURMD_NODENAME')}, first node {head}", flush=True)
    return [
        f"--nnodes={nodes}",
        f"--node-rank={node}",
        f"--nproc-per-node={ranks // nodes}",
        f"--master-addr={cluster.address(head)}",
        f"--master-port={FIRST_PORT + int(os.environ['SLURM_JOB_ID']) % NUM_PORTS}",
    ]


def _note_sigterm(stop: Path) -> None:
    def note(_signal: int, _frame: FrameType | None) -> None:
        stop.touch()

    signal.signal(signal.SIGTERM, note)


if __name__ == "__main__":
    main()
