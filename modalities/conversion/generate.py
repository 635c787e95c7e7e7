"""`modalities generate`: a quick look at what a converted model writes."""

from pathlib import Path

from modalities.errors import ConfigError
from modalities.generation import Generator, Sampling


def generate(
    folder: Path,
    *,
    prompt: str,
    tokens: int = 120,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = 0.95,
    seed: int = 1,
    count: int = 1,
    device: str = "cpu",
) -> list[str]:
    """Return `count` continuations of `prompt` by the Hugging Face directory `folder`; number n is drawn with seed + n."""
    for name, fits in (
        ("tokens", tokens >= 1),
        ("count", count >= 1),
        ("temperature", temperature >= 0),
        ("top-k", top_k is None or top_k >= 1),
        ("top-p", top_p is None or 0 < top_p <= 1),
    ):
        if not fits:
            got = {"tokens": tokens, "count": count, "temperature": temperature, "top-k": top_k, "top-p": top_p}[name]
            raise ConfigError(f"--{name}: expected {_EXPECTED[name]}, got {got}; change it")
    sampling = Sampling(tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p)
    generator = Generator(folder, device=device)
    return [generator.continuation(prompt, sampling, seed=seed + number) for number in range(count)]


_EXPECTED = {
    "tokens": "1 or more",
    "count": "1 or more",
    "temperature": "0 (greedy) or more",
    "top-k": "1 or more",
    "top-p": "a number above 0 and at most 1",
}
