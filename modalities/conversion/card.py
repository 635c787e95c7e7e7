"""The model card: `README.md` with the front matter that the Hugging Face hub reads."""

from collections.abc import Mapping
from typing import Any

import yaml

from modalities.conversion.config import ConversionSection
from modalities.conversion.verification import Checked
from modalities.models.llama_config import LlamaConfig, parameters
from modalities.work import Upstream


def model_card(
    section: ConversionSection, config: LlamaConfig, inputs: Mapping[str, Upstream], checked: Checked, *, context: int
) -> str:
    """Return the text of the card. It depends on configs and manifests alone: not on time, path or host."""
    options, info = section.config, inputs["pretraining"].manifest.info
    title = options.title or f"Language model, {_count(parameters(config))} parameters, step {section.step:,}"
    model = {
        "class": "Qwen3ForCausalLM" if config.qk_norm else "LlamaForCausalLM",
        "parameters": f"{parameters(config):,}",
        "layers x width": f"{config.layers} x {config.dim}",
        "query and key heads": f"{config.heads} and {config.kv_heads} of width {config.head_dim}",
        "feed-forward width": f"{config.ffn_dim:,}",
        "vocabulary": f"{config.vocab_size:,}",
        "output layer": "tied to the embedding" if config.tied_embeddings else "own weights",
        "context in training": f"{context:,} tokens",
        "rotary base": f"{config.rope_base:,g}",
        "data type of the weights": options.dtype,
    }
    training = {"optimizer steps": f"{section.step:,}"}
    training |= {name.replace("_", " "): _show(info[name]) for name in SHOWN if name in info}
    whole = "and the logits of the whole model " if checked.whole_model else ""
    parts = [
        _front_matter(section),
        f"# {title}",
        "A decoder-only language model, trained from scratch. It continues text; it is not tuned to follow instructions.",
        options.notes.strip(),
        "## Use",
        USE,
        "## Model",
        _table(model),
        "## Training",
        _table(training),
        "## Data",
        _data(section.notes),
        "## Verification",
        f"Every tensor was read back and its digest compared. In float32, hidden states of {checked.blocks} blocks "
        f"{whole}on {checked.tokens:,} tokens equal the trainer's bit for bit"
        + ("." if options.dtype == "float32" else f", after rounding the weights to {options.dtype}."),
        "## Provenance",
        _table({f"{role} (`{up.manifest.node}`)": f"`{up.manifest.key}`" for role, up in sorted(inputs.items())}),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


SHOWN = ("tokens_seen", "final_loss")
"""Keys of pretraining's `info` that the card shows, if they are there."""

USE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # where this file is
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
inputs = tokenizer("Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))
```"""


def _front_matter(section: ConversionSection) -> str:
    data: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    if section.config.licence is not None:
        data["license"] = section.config.licence
    languages = sorted({n["language"] for n in section.notes.values() if isinstance(n, Mapping) and n.get("language")})
    if languages:
        data["language"] = languages
    return f"---\n{yaml.safe_dump(data, sort_keys=True, allow_unicode=True)}---"


def _data(notes: Mapping[str, Any]) -> str:
    if not notes:
        return "Nothing was noted about the data."
    lines = ["| source | licence | provenance |", "|---|---|---|"]
    for source, note in sorted(notes.items()):
        known = note if isinstance(note, Mapping) else {"provenance": note}
        cells = (source, known.get("licence") or "not stated", known.get("provenance") or "not stated")
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return "\n".join(lines)


def _table(rows: Mapping[str, str]) -> str:
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _cell(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def _show(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _count(number: int) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)
