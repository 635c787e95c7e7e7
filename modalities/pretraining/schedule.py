"""The learning rate as a function of the step alone: nothing to save, nothing to restore wrongly."""

import math

from modalities.pretraining.config import Decay, SegmentSection


def rate(section: SegmentSection, step: int) -> float:
    """Return the learning rate of a step, counted from 0. The last step of the warm-up has the peak rate."""
    done = step + 1
    if done < section.warmup_steps:
        return section.learning_rate * done / section.warmup_steps
    if section.decay is None or done <= section.decay.start_step:
        return section.learning_rate
    return section.learning_rate * _decayed(section.decay, done)


def _decayed(decay: Decay, done: int) -> float:
    progress = min(1.0, (done - decay.start_step) / max(1, decay.end_step - decay.start_step))
    if decay.shape == "cosine":
        left = 0.5 * (1.0 + math.cos(math.pi * progress))
    elif decay.shape == "linear":
        left = 1.0 - progress
    else:
        left = 1.0 - math.sqrt(progress)
    return decay.min_ratio + (1.0 - decay.min_ratio) * left
