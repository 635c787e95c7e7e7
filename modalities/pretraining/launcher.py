"""Start the ranks of one node: `python -m modalities.pretraining.launcher <ranks> <job.json>`, which is torchrun with a leash."""

import sys

from modalities.pretraining.stopping import die_with_parent


def main() -> None:
    """Run torchrun in this process, which ends when its parent does; so do the ranks."""
    die_with_parent()
    from torch.distributed.run import main as torchrun

    ranks, job = sys.argv[1:]
    torchrun(["--standalone", f"--nproc-per-node={ranks}", "-m", "modalities.pretraining.worker", job])


if __name__ == "__main__":
    main()
