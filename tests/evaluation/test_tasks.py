"""lm-eval on local tasks: figures from the items, the continuation task, and bad input."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from modalities import checkpoint
from modalities.config import select
from modalities.errors import ConfigError, DivergedError, InputError
from modalities.evaluation import tasks
from modalities.evaluation.config import (
    ComputeConfig,
    ContinuationConfig,
    EvaluationConfig,
    EvaluationSection,
    TaskConfig,
    section,
)
from modalities.evaluation.continuation import make_items
from modalities.evaluation.stage import run
from modalities.evaluation.tasks import estimate
from modalities.evaluation.texts import Document, open_tokenizer

TASK = """task: colours
dataset_path: json
dataset_kwargs:
  data_files:
    test: colours.jsonl
test_split: test
output_type: multiple_choice
doc_to_text: "{{query}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list:
  - metric: acc
  - metric: acc_norm
"""


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    """A local task of 12 items with endings of different lengths, one of them longer than the context."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    items = [
        {"query": f"the {n} sail", "choices": ["salt", "an early light shone", "über"], "label": n % 3}
        for n in range(11)
    ]
    items.append({"query": "the heron " * 60, "choices": ["a", "bb", "ccc"], "label": 1})
    (folder / "colours.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (folder / "colours.yaml").write_text(TASK)
    return folder / "colours.yaml"


@pytest.fixture
def in_process(monkeypatch) -> None:
    """Run lm-eval within the test: a child spends 15 seconds on imports."""
    from modalities.evaluation import harness

    monkeypatch.setattr(tasks, "run_harness", lambda asked, answer, **_: harness.main(asked, answer))


def tasks_section(wanted: dict[str, TaskConfig], **keys) -> EvaluationSection:
    config = EvaluationConfig(tasks=wanted, **keys)
    return section(config, "tasks", 7)


def learn(pretraining, config, tokenizer, texts: list[str], save, folder: Path):
    """Train a checkpoint further on texts for a few seconds."""
    _, model = checkpoint.open_model(pretraining.folder)
    opened = open_tokenizer(tokenizer)
    stream = np.concatenate([np.append(ids, 0) for ids in opened.encode(texts)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        starts = torch.randint(len(stream) - 65, (8,), generator=generator).tolist()
        rows = torch.from_numpy(np.stack([stream[start : start + 65] for start in starts]))
        loss = torch.nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return save(folder, model, config)


def test_local_task_by_path(conversion, heldout, make_work, task_file: Path) -> None:
    wanted = tasks_section({"palette": TaskConfig(file=task_file)})
    work = make_work(wanted, conversion=conversion, heldout=heldout)
    result = run(work)
    rows = pq.read_table(work.folder / "items.parquet").to_pylist()
    assert len(rows) == 12 and result.counts == {"items": 12, "items_truncated": 1}
    assert [row["truncated"] for row in rows] == [False] * 11 + [True]
    found = result.info["tasks"]["palette"]
    # the harness's own figures from the same log-likelihoods
    assert found["metrics"]["accuracy"]["mean"] == pytest.approx(found["lm_eval"]["acc"])
    assert found["metrics"]["accuracy_norm"]["mean"] == pytest.approx(found["lm_eval"]["acc_norm"])
    assert found["metrics"]["accuracy"]["chance"] == pytest.approx(1 / 3)
    for row in rows:
        nats = np.array(row["log_likelihoods"])
        assert row["probability"] == pytest.approx(np.exp(nats)[row["gold"]] / np.exp(nats).sum())
        assert row["bits_per_byte"] == pytest.approx(
            -nats[row["gold"]] / math.log(2) / row["choice_bytes"][row["gold"]]
        )
    assert rows[0]["choice_bytes"] == [4, 20, 5]


@pytest.mark.usefixtures("in_process")
def test_limit_and_metrics(conversion, heldout, make_work, task_file: Path) -> None:
    wanted = tasks_section({"palette": TaskConfig(file=task_file, limit=5, metrics=("probability", "acc"))})
    result = run(make_work(wanted, conversion=conversion, heldout=heldout))
    assert run(make_work(wanted, conversion=conversion, heldout=heldout)).content == result.content
    found = result.info["tasks"]["palette"]
    assert found["items"] == 5
    assert set(found["metrics"]) == {"probability"} and set(found["lm_eval"]) == {"acc"}


@pytest.mark.usefixtures("in_process")
def test_a_model_that_learnt_is_above_chance_on_continuation(
    pretraining, config, tokenizer, make_heldout, make_text, make_work, to_hugging_face, save, tmp_path
) -> None:
    texts = [make_text(source, number, 150) for source in ("birds", "ships") for number in range(20)]
    held = make_heldout(
        [(source, make_text(source, n, 160), "en") for source in ("birds", "ships") for n in range(30, 45)]
    )
    trained = learn(pretraining, config, tokenizer, texts, save, tmp_path / "learnt")
    model = to_hugging_face(trained, tokenizer, make_work)
    sizes = ContinuationConfig(items=40, context_bytes=80, ending_bytes=40)
    work = make_work(tasks_section({"continuation": TaskConfig()}, continuation=sizes), conversion=model, heldout=held)
    found = run(work).info["tasks"]["continuation"]
    accuracy = found["metrics"]["accuracy_norm"]
    assert accuracy["chance"] == 0.25 and found["items"] == 80
    assert accuracy["mean"] > 0.25 + 3 * accuracy["stderr"]
    assert set(found["sources"]) == {"birds", "ships"}


def test_continuation_items_are_sound(make_text) -> None:
    documents = [
        Document(source="birds", id=f"d{n}", text=make_text("birds", n, 60 + 40 * n), language=None) for n in range(8)
    ]
    config = ContinuationConfig(items=25, context_bytes=60, ending_bytes=30)
    items = make_items(documents, config)
    assert len(items) == 25 and items == make_items(documents, config)
    assert items != make_items(documents, dataclasses.replace(config, seed=2))
    texts = {document.id: " ".join(document.text.split()) for document in documents}
    for item in items:
        true = item["endings"][item["label"]]
        assert f"{item['passage']} {true}" in texts[item["document"]]
        assert len(set(item["endings"])) == 4
        assert len(item["passage"].encode()) >= 60 and len(true.encode()) >= 30
    assert {item["label"] for item in items} == {0, 1, 2, 3}


def test_continuation_needs_enough_documents(conversion, make_heldout, make_text, make_work) -> None:
    held = make_heldout([("birds", make_text("birds", n, 200), "en") for n in range(3)])
    with pytest.raises(InputError, match="expected at least 4 held-out documents of 420 bytes"):
        run(make_work(tasks_section({"continuation": TaskConfig()}), conversion=conversion, heldout=held))


def test_standard_error_counts_items_of_a_document_together() -> None:
    rows = [{"accuracy": float(n % 2), "chance": 0.25, "group": None, "item": n} for n in range(100)]
    alone = estimate(rows, "accuracy")
    assert alone["stderr"] == pytest.approx(0.05) and alone["centred"] == pytest.approx(1 / 3)
    grouped = [row | {"group": f"{row['item'] % 2}"} for row in rows]
    assert estimate(grouped, "accuracy")["stderr"] > 5 * alone["stderr"]


def test_digest_follows_file_contents_not_paths(task_file: Path, tmp_path: Path) -> None:
    def result_keys(file: Path):
        return select(tasks_section({"palette": TaskConfig(file=file)}), "result")

    first = result_keys(task_file)
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for file in task_file.parent.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert result_keys(copy / task_file.name) == first
    (copy / "colours.jsonl").write_text('{"query": "a", "choices": ["b", "c"], "label": 0}\n')
    assert result_keys(copy / task_file.name) != first


# --- bad input -------------------------------------------------------------------------------------------------------


def test_missing_files_are_found_at_plan(task_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.tasks\.x\.file: expected an lm-eval task file"):
        tasks_section({"x": TaskConfig(file=task_file.with_name("none.yaml"))})
    (task_file.parent / "colours.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"data_files: no such file: .*colours\.jsonl"):
        tasks_section({"x": TaskConfig(file=task_file)})


def test_data_that_changed_since_the_plan(conversion, heldout, make_work, task_file: Path) -> None:
    wanted = tasks_section({"palette": TaskConfig(file=task_file)})
    with (task_file.parent / "colours.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(InputError, match=r"colours\.jsonl: expected SHA-256 .* as in the plan"):
        run(make_work(wanted, conversion=conversion, heldout=heldout))


@pytest.mark.usefixtures("in_process")
def test_task_without_items(conversion, heldout, make_work, task_file: Path) -> None:
    (task_file.parent / "colours.jsonl").write_text("")
    with pytest.raises(InputError, match=r"evaluation\.tasks\.palette: expected"):
        run(make_work(tasks_section({"palette": TaskConfig(file=task_file)}), conversion=conversion, heldout=heldout))


@pytest.mark.usefixtures("in_process")
def test_unknown_task_and_unknown_metric(conversion, heldout, make_work, task_file: Path) -> None:
    with pytest.raises(InputError, match=r"evaluation\.tasks\.no_such_task: expected a task of lm-eval"):
        run(make_work(tasks_section({"no_such_task": TaskConfig()}), conversion=conversion, heldout=heldout))
    wanted = tasks_section({"palette": TaskConfig(file=task_file, metrics=("accurate",))})
    with pytest.raises(ConfigError, match=r"tasks\.palette\.metrics: expected some of accuracy, .* got 'accurate'"):
        run(make_work(wanted, conversion=conversion, heldout=heldout))


@pytest.mark.usefixtures("in_process")
def test_named_task_whose_data_is_not_here(conversion, heldout, make_work, monkeypatch, tmp_path: Path) -> None:
    import datasets

    def offline(*args: object, **keys: object) -> None:
        raise ConnectionError("offline mode is on")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(InputError, match=r"evaluation\.tasks\.piqa: expected its data on this machine"):
        run(make_work(tasks_section({"piqa": TaskConfig()}), conversion=conversion, heldout=heldout))


@pytest.mark.usefixtures("in_process")
def test_nan_logits(conversion, heldout, make_work, task_file: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = conversion.folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][:] = torch.nan
    save_file(tensors, file, metadata={"format": "pt"})
    wanted = tasks_section({"palette": TaskConfig(file=task_file, limit=2)}, compute=ComputeConfig(batch_tokens=64))
    with pytest.raises(DivergedError, match="palette, item 0: expected finite log-likelihoods"):
        run(make_work(wanted, conversion=conversion, heldout=heldout))
