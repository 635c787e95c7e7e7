"""Evaluation of one checkpoint by one suite: bits per byte on held-out documents, generated samples, or lm-eval tasks."""

from modalities.evaluation.config import EvaluationSection
from modalities.work import Result, Work


def run(work: Work[EvaluationSection]) -> Result:
    """Run the suite that the section names."""
    if work.section.suite == "heldout":
        from modalities.evaluation.heldout import run_heldout

        return run_heldout(work)
    if work.section.suite == "samples":
        from modalities.evaluation.samples import run_samples

        return run_samples(work)
    from modalities.evaluation.tasks import run_tasks

    return run_tasks(work)
