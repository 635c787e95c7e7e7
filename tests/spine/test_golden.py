"""Digests of a fixed config: what is in the store of a user must still be found by the next version.

If this fails, either a key was added without `neutral`, a default was changed, or a stage version was raised. The last is meant
to move digests, as is a changed default; say so in CHANGELOG.md and write the new digests with

    GOLDEN_WRITE=1 python -m pytest tests/spine/test_golden.py
"""

import json
import os
from pathlib import Path

import pytest

from modalities import config, plan

GOLDEN = Path(__file__).with_name("golden.json")
CONFIG = """\
run: golden
ingestion:
  sources:
    a: {paths: [raw/a.jsonl], language: en}
    b: {paths: [raw/b.txt], language: de}
filtering:
  recipe: fineweb
  sources: {b: {recipe: fineweb2-deu_Latn}}
tokenization: {train: {vocab_size: 512}}
packing: {sequence_length: 64, weights: {a: 0.75, b: 0.25}}
pretraining:
  model: {dim: 64, layers: 2, heads: 2, kv_heads: 1, ffn_dim: 128}
  total_steps: 100
  global_batch_tokens: 1024
  learning_rate: 3e-4
  schedule: {name: wsd, warmup_steps: 10, decay_steps: 20}
  evaluate_every: 50
evaluation: {tasks: {continuation: {}}}
"""


def test_digests_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "packages", lambda node: {})
    Path("raw").mkdir()
    Path("raw/a.jsonl").write_text('{"text": "one"}\n')
    Path("raw/b.txt").write_text("eins\n")
    found = {i.name: i.digest for i in plan.resolve(config.parse(CONFIG, "golden.yaml")).instances.values()}
    if os.environ.get("GOLDEN_WRITE"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(GOLDEN.read_text())
