"""Suite `samples`: text that the converted model writes, from given prompts or from beginnings of held-out documents.

Writes `samples.json`: a list of {source, document, prompt, text, seed}; `source` and `document` are null for given prompts.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from modalities.errors import InputError
from modalities.evaluation.compute import pick_device, record
from modalities.evaluation.config import EvaluationSection, SamplesConfig
from modalities.evaluation.texts import read_documents, sources_of
from modalities.generation import Generator, Sampling
from modalities.manifest import write_json
from modalities.work import Result, Upstream, Work, digest_of

SCHEMA = 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A text to continue, and where it is from."""

    text: str
    source: str | None = None
    document: str | None = None


def run_samples(work: Work[EvaluationSection]) -> Result:
    """Continue every prompt with a seed of its own."""
    config = work.section.samples
    assert config is not None
    device = pick_device(work.section.compute)
    prompts = list(_prompts(config, work.inputs["heldout"]))
    if not prompts:
        raise InputError(
            f"{work.label}: expected held-out documents to take prompts from, got none; give evaluation.samples.prompts"
        )
    generator = Generator(work.inputs["conversion"].folder, device=device)
    sampling = Sampling(tokens=config.tokens, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
    samples: list[dict[str, Any]] = []
    for number, prompt in enumerate(prompts):
        seed = config.seed + number
        text = generator.continuation(prompt.text, sampling, seed=seed)
        samples.append(
            {"source": prompt.source, "document": prompt.document, "prompt": prompt.text, "text": text, "seed": seed}
        )
        work.progress.update(number + 1, len(prompts), unit="samples")
    write_json(work.folder / "samples.json", samples)
    return Result(
        content=digest_of(SCHEMA, "samples", samples),
        counts={"samples": len(samples)},
        info={"schema": SCHEMA, "suite": "samples", "step": work.section.step, "samples": samples},
        numerics=record(work.section.compute, device),
    )


def _prompts(config: SamplesConfig, heldout: Upstream) -> Iterator[Prompt]:
    if config.prompts is not None:
        for text in config.prompts:
            yield from [Prompt(text=text)] * config.count
        return
    for source, documents in sources_of(read_documents(heldout)).items():
        long_enough = [document for document in documents if document.num_bytes > config.prompt_bytes]
        for document in long_enough[: config.count]:
            yield Prompt(text=beginning(document.text, config.prompt_bytes), source=source, document=document.id)


def beginning(text: str, num_bytes: int) -> str:
    """Return the whole words within the first `num_bytes` of a text; the cut word if there is no space."""
    cut = text.encode("utf-8")[:num_bytes].decode("utf-8", "ignore")
    if len(cut) == len(text) or text[len(cut)].isspace() or cut[-1:].isspace():
        return cut.rstrip()
    words = cut.rsplit(maxsplit=1)
    return words[0].rstrip() if len(words) > 1 else cut.rstrip()
