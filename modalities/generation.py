"""Text from a Hugging Face model directory, through transformers; used by `modalities generate` and the suite `samples`."""

import dataclasses
from pathlib import Path
from typing import Any

from modalities.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the next token is chosen."""

    tokens: int = 120
    """Most new tokens; an end-of-document token ends earlier."""
    temperature: float = 0.8
    """0 always takes the most likely token."""
    top_k: int | None = None
    top_p: float | None = None


class Generator:
    """A loaded model and its tokenizer."""

    def __init__(self, folder: Path, *, device: str = "cpu", dtype: str = "float32") -> None:
        """Load a directory; raise `InputError` if it is none that transformers can read. Runs no code from it."""
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        if not (folder / "config.json").is_file():
            raise InputError(
                f"{folder}: expected a Hugging Face model directory, got one without config.json; convert the model"
            )
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
            )
        except (OSError, ValueError) as error:
            raise InputError(
                f"{folder}: expected a model that transformers can read, got {error}; convert again"
            ) from None
        self.model: Any = model.to(device).eval()

    @property
    def context(self) -> int:
        """Most tokens the model was made for."""
        return int(self.model.config.max_position_embeddings)

    def continuation(self, prompt: str, sampling: Sampling, *, seed: int) -> str:
        """Return the text that follows `prompt`, special tokens left out. Same seed, same text (on one device).

        A prompt is read as the beginning of a document. Raises `InputError` if it leaves no room in the context.
        """
        import torch

        ids = self._prompt(prompt)
        room = self.context - len(ids)
        if room < 1:
            raise InputError(
                f"prompt: expected fewer than {self.context} tokens, the model's context, got {len(ids)}; shorten it"
            )
        inputs = torch.tensor([ids], device=self.model.device)
        torch.manual_seed(seed)
        with torch.inference_mode():
            out = self.model.generate(
                inputs, attention_mask=torch.ones_like(inputs), **_options(sampling, room, self._end())
            )
        return str(self.tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True))

    def _prompt(self, prompt: str) -> list[int]:
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        begin = self.model.config.bos_token_id
        return [self._end() if begin is None else int(begin), *ids]

    def _end(self) -> int:
        end = self.model.config.eos_token_id
        if end is None:
            raise InputError(
                "config.json: eos_token_id: expected the id of the end-of-document token, got none; add it"
            )
        return int(end[0] if isinstance(end, list) else end)


def _options(sampling: Sampling, room: int, end: int) -> dict[str, Any]:
    options: dict[str, Any] = {"max_new_tokens": min(sampling.tokens, room), "eos_token_id": end, "pad_token_id": end}
    if sampling.temperature == 0:
        return options | {"do_sample": False}
    # transformers' own defaults (top_k 50) must not slip in: 0 and 1.0 switch the filters off
    return options | {
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k if sampling.top_k is not None else 0,
        "top_p": sampling.top_p if sampling.top_p is not None else 1.0,
    }
