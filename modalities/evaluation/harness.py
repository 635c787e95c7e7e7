"""The lm-eval child process: `python -m modalities.evaluation.harness REQUEST ANSWER`, both JSON files.

A process of its own, because lm-eval, datasets and the hub read their settings from the environment once, at import, and
leave threads and caches behind. Request: {model, device, threads, batch_size, tasks: [{name, file, config, fewshot, limit}]};
`config` is a task as lm-eval reads it, `file` a task file, and without either lm-eval's own task of that name is meant.
Answer: {tasks: [{name, version, output_type, higher_is_better, metrics, items}]} or {error: {kind, message}}.
"""

import ctypes
import json
import signal
import sys
from pathlib import Path
from typing import Any


class _BadInputError(Exception):
    """Something the user can mend."""


def main(request: Path, answer: Path) -> None:
    """Run the requested tasks and write the answer."""
    asked = json.loads(request.read_text(encoding="utf-8"))
    try:
        done: dict[str, Any] = {"tasks": _run(asked)}
    except _BadInputError as error:
        done = {"error": {"kind": "input", "message": str(error)}}
    answer.write_text(json.dumps(done), encoding="utf-8")


def _run(asked: dict[str, Any]) -> list[dict[str, Any]]:
    import torch
    from lm_eval.models.huggingface import HFLM

    torch.set_num_threads(asked["threads"])

    class _Model(HFLM):  # type: ignore[misc]
        """lm-eval asserts that an ending fits the context; here its last tokens are scored, and the item counts as cut."""

        def _loglikelihood_tokens(self, requests: Any, **options: Any) -> Any:
            cut = [(name, context, ending[-self.max_length :]) for name, context, ending in requests]
            return super()._loglikelihood_tokens(cut, **options)

    model = _Model(
        pretrained=asked["model"],
        backend="causal",
        dtype="float32",
        device=asked["device"],
        batch_size=asked["batch_size"],
    )
    done = []
    for number, task in enumerate(asked["tasks"]):
        print(f"progress {number} {len(asked['tasks'])} {task['name']}", flush=True)
        done += _run_task(task, model)
    return done


def _run_task(task: dict[str, Any], model: Any) -> list[dict[str, Any]]:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager()
    loaded = _load(task, manager)
    for name, one in loaded.items():
        if len(one.eval_docs) == 0:
            raise _BadInputError(
                f"evaluation.tasks.{task['name']}: expected items, got none in {name}; mend its data or leave it out"
            )
    results = simple_evaluate(
        model=model,
        tasks=list(loaded.values()),
        num_fewshot=task["fewshot"],
        limit=task["limit"],
        task_manager=manager,
        bootstrap_iters=0,
        log_samples=True,
    )
    assert results is not None
    return [_report(task["name"], name, one, results, model) for name, one in loaded.items()]


def _load(task: dict[str, Any], manager: Any) -> dict[str, Any]:
    wanted: Any = task["config"] if task["config"] is not None else task["name"]
    if task["file"] is not None:
        from lm_eval.tasks._yaml_loader import load_yaml

        file = Path(task["file"]).resolve()
        wanted = load_yaml(file) | {"task": task["name"]}
        _absolute_data(wanted, file.parent)
    key = f"evaluation.tasks.{task['name']}"
    try:
        tasks: dict[str, Any] = manager.load([wanted])["tasks"]
    except KeyError as error:
        raise _BadInputError(f"{key}: expected a task of lm-eval, got {error}; give its file") from error
    except StopIteration:  # lm-eval looks at the first item of a task when it builds it
        raise _BadInputError(f"{key}: expected items, got none; mend its data or leave it out") from None
    except Exception as error:  # of whatever library reads the data
        raise _BadInputError(
            f"{key}: expected its data on this machine, got {type(error).__name__}: {error}; "
            "give a local file, or load the task once with a network so that it is in the Hugging Face cache"
        ) from error
    return tasks


def _absolute_data(config: dict[str, Any], folder: Path) -> None:
    """Let relative data paths start at the task file."""
    arguments = config.get("dataset_kwargs") or {}
    files = arguments.get("data_files")
    if files is None:
        return

    def place(value: Any) -> Any:
        if isinstance(value, dict):
            return {split: place(file) for split, file in value.items()}
        if isinstance(value, list):
            return [place(file) for file in value]
        return value if "://" in value else str(folder / value)

    config["dataset_kwargs"] = arguments | {"data_files": place(files)}


def _report(asked: str, name: str, task: Any, results: dict[str, Any], model: Any) -> dict[str, Any]:
    samples = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
    seen: dict[int, dict[str, Any]] = {}
    for sample in samples:  # one entry per filter: the first is the plain one
        seen.setdefault(sample["doc_id"], sample)
    metrics = {
        key.removesuffix(",none"): value
        for key, value in results["results"][name].items()
        if isinstance(value, (int, float)) and not key.startswith(("alias", "sample_")) and "_stderr" not in key
    }
    return {
        "asked": asked,
        "name": name,
        "version": str(results["versions"].get(name)),
        "output_type": task.get_config("output_type"),
        "metrics": metrics,
        "items": [_item(task, sample, model) for sample in seen.values()],
    }


def _item(task: Any, sample: dict[str, Any], model: Any) -> dict[str, Any]:
    choices = task.doc_to_choice(sample["doc"]) if task.get_config("output_type") == "multiple_choice" else None
    responses = sample["resps"]
    flat = [response[0] if isinstance(response, list) else response for response in responses]
    scores = [pair for pair in flat if isinstance(pair, (list, tuple)) and len(pair) == 2]
    return {
        "item": sample["doc_id"],
        "gold": _gold(sample["target"], choices),
        "group": sample["doc"].get("document"),
        "source": sample["doc"].get("source"),
        "choices": choices,
        "log_likelihoods": [float(pair[0]) for pair in scores] or [float(x) for x in flat if isinstance(x, float)],
        "greedy": [bool(pair[1]) for pair in scores],
        "response": next((text for text in flat if isinstance(text, str)), None),
        "truncated": _truncated(sample["arguments"], model),
    }


def _gold(target: Any, choices: list[str] | None) -> int | None:
    if choices is None:
        return None
    target = target[0] if isinstance(target, list) else target
    if isinstance(target, str):
        return choices.index(target) if target in choices else int(target)
    return int(target)


def _truncated(arguments: Any, model: Any) -> bool:
    """Say whether a request is longer than the context: lm-eval then cuts its beginning off without a word."""
    pairs = arguments.values() if isinstance(arguments, dict) else arguments
    for pair in pairs:
        texts = list(pair.values()) if isinstance(pair, dict) else list(pair)
        text = "".join(part for part in texts if isinstance(part, str))
        if len(model.tok_encode(text)) > model.max_length + 1:
            return True
    return False


if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: do not outlive the job
    main(Path(sys.argv[1]), Path(sys.argv[2]))
