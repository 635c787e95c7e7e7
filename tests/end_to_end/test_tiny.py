"""What a user is promised, tried on the smallest whole run."""

import itertools
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

NOTHING = "Nothing to be done"


def test_a_run_ends_with_model_figures_sample_and_report(tiny: Any) -> None:
    shown = (tiny.path / "run.out").read_text()
    for part in (
        "held-out bits per byte",
        "a sample",
        "results/runs/tiny/base/conversion",
        "results/runs/tiny/report.html",
    ):
        assert part in shown
    assert re.search(r"novels +\d\.\d{3} +\(xz \d\.\d{3}, bigram \d\.\d{3}\)", shown)
    assert (tiny.path / "results/runs/tiny/report.html").stat().st_size > 10_000


def test_every_node_balances_and_is_linked(tiny: Any) -> None:
    made = tiny.manifests()
    assert len(made) == len(tiny.plan()["nodes"])
    for name, manifest in made.items():
        if "documents_in" in manifest["counts"]:
            dropped = sum(manifest["dropped"].values())
            assert manifest["counts"]["documents_in"] == manifest["counts"]["documents_out"] + dropped, name
    for source in ("help", "novels"):
        chain = [
            made[f"{node}({source})"]["counts"] for node in ("ingestion", "filtering", "deduplication", "tokenization")
        ]
        for before, after in itertools.pairwise(chain):
            assert after["documents_in"] == before["documents_out"]
    links = tiny.path / "results/runs/tiny/base"
    assert (links / "filtering" / "help" / "manifest.json").exists()
    assert (links / "pretraining" / "20-40").is_symlink()


def test_the_model_loads_without_this_project(tiny: Any) -> None:
    code = (
        "import sys; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "m = AutoModelForCausalLM.from_pretrained(sys.argv[1]); t = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "ids = t('She was', return_tensors='pt').input_ids\n"
        "print(type(m).__name__, len(t.decode(m.generate(ids, max_new_tokens=5, do_sample=False)[0])))\n"
        "assert 'modalities' not in sys.modules"
    )
    import sys

    model = tiny.path / "results/runs/tiny/base/conversion"
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)], capture_output=True, text=True, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("LlamaForCausalLM")


def test_again_there_is_nothing_to_do(tiny: Any) -> None:
    started = time.time()
    assert tiny.to_run() == []
    done = tiny.snakemake()
    assert NOTHING in done.stdout + done.stderr
    made = [p for p in (tiny.path / "results/store").rglob("manifest.json") if p.stat().st_mtime > started]
    assert made == []


def test_a_copied_project_has_nothing_to_do(copy_of_tiny: Any) -> None:
    done = copy_of_tiny.snakemake()
    assert NOTHING in done.stdout + done.stderr


def test_touched_stamps_have_nothing_to_do(copy_of_tiny: Any) -> None:
    for path in (copy_of_tiny.path / "results/runs/tiny/.stamps").rglob("*"):
        os.utime(path, None)
    done = copy_of_tiny.snakemake()
    assert NOTHING in done.stdout + done.stderr


def test_what_a_change_reaches(tiny: Any) -> None:
    def stages(*sets: str) -> set[str]:
        arguments = [part for s in sets for part in ("--set", s)]
        return {name.partition("(")[0] for name in tiny.to_run(*arguments)}

    assert stages("pretraining.learning_rate=1e-3") == {"pretraining", "conversion", "evaluation", "reporting"}
    reached = stages("filtering.rules={gopher_quality: {min_doc_words: 10}}")
    assert "filtering" in reached
    assert not reached & {"ingestion", "heldout", "filtering.scores"}
    assert stages("pretraining.numerics.micro_batch=2", "runtime.batches=1") == set()
    longer = tiny.to_run("--set", "pretraining.total_steps=60", "--set", "pretraining.schedule.decay_steps=20")
    assert "pretraining(0-20)" not in longer
    assert "pretraining(20-40)" in longer


def test_forced_training_makes_the_same_weights_and_stops_there(copy_of_tiny: Any) -> None:
    before = copy_of_tiny.manifests()
    dry = copy_of_tiny.snakemake("--forcerun", "pretraining", "--dry-run")
    assert dry.returncode == 0
    assert copy_of_tiny.manifests() == before, "a dry run moves nothing"
    done = copy_of_tiny.snakemake("--forcerun", "pretraining")
    assert done.returncode == 0, done.stderr[-3000:]
    after = copy_of_tiny.manifests()
    for name, manifest in after.items():
        again = manifest["provenance"] != before[name]["provenance"]
        assert again == name.startswith("pretraining("), name
        assert manifest["content"] == before[name]["content"]


def test_a_longer_training_goes_on_and_a_changed_one_starts_anew(copy_of_tiny: Any) -> None:
    before = copy_of_tiny.manifests()
    done = copy_of_tiny.snakemake("--config", "pretraining={total_steps: 60}")
    assert done.returncode == 0, done.stderr[-3000:]
    after = copy_of_tiny.manifests()
    assert after["pretraining(0-20)"] == before["pretraining(0-20)"]
    assert "pretraining(40-60)" in after
    assert copy_of_tiny.to_run() == [], "going back reruns nothing"


def test_one_more_file_is_one_more_unit(copy_of_tiny: Any) -> None:
    data = copy_of_tiny.path / "tests/data"
    (data / "novels-2.jsonl").write_text(
        json.dumps({"id": "new", "text": "A new passage of some length. " * 20}) + "\n"
    )
    config = copy_of_tiny.path / "config/tiny.yaml"
    config.write_text(config.read_text().replace("novels.jsonl.gz]", "novels.jsonl.gz, tests/data/novels-2.jsonl]"))
    before = {p: p.stat().st_mtime_ns for p in (copy_of_tiny.path / "results/store/ingestion/units").glob("*/*")}
    done = copy_of_tiny.snakemake("--until", "ingestion")
    assert done.returncode == 0, done.stderr[-3000:]
    after = {p: p.stat().st_mtime_ns for p in (copy_of_tiny.path / "results/store/ingestion/units").glob("*/*")}
    assert len(after) == len(before) + 1
    assert all(after[path] == time_ns for path, time_ns in before.items())


def test_until_stops_there(new_project: Any) -> None:
    done = new_project.snakemake("--until", "filtering_scores")
    assert done.returncode == 0, done.stderr[-3000:]
    made = {name.partition("(")[0] for name in new_project.manifests()}
    assert made == {"ingestion", "filtering.scores"}


KILLED_IN = ("ingestion", "deduplication", "tokenization", "pretraining", "conversion")


def _wait_for_work(project: Any, node: str, head: "subprocess.Popen[str]") -> bool:
    """Wait until a job works on a node; False if the run ended before that was seen."""
    work = project.path / "results/store/.work"
    while head.poll() is None:
        if any(work.glob(f"{node}*/*/attempt-*")):
            return True
        time.sleep(0.02)
    return False


def test_killed_anywhere_it_ends_with_the_same_weights(tiny: Any, new_project: Any) -> None:
    killed = []
    for node in KILLED_IN:
        head = new_project.start()
        if _wait_for_work(new_project, node, head):
            killed.append(node)
            time.sleep(0.3)
            os.killpg(head.pid, signal.SIGKILL)
        head.wait()
    assert len(killed) >= 3, f"the run was too fast to be killed in more than {killed}"
    done = new_project.snakemake()
    assert done.returncode == 0, done.stderr[-3000:]
    assert new_project.weights() == tiny.weights()
    mine, other = new_project.manifests(), tiny.manifests()
    assert {n: m["content"] for n, m in mine.items()} == {n: m["content"] for n, m in other.items()}
    shards = [
        sorted(p.read_bytes() for p in Path(x.path).glob("results/store/tokenization/units/*/*/tokens.bin"))
        for x in (tiny, new_project)
    ]
    assert shards[0] == shards[1]
    assert not list((new_project.path / "results/store/.work").glob("*/*")), "no work is left over"


def test_two_controllers_make_everything_once(new_project: Any) -> None:
    heads = [new_project.start(), new_project.start()]
    for head in heads:
        assert head.wait(timeout=900) == 0
    trash = new_project.path / "results/store/.trash"
    assert not list(trash.glob("*/*/manifest.json")), "nothing was made twice"
    assert all(m["provenance"]["attempt"] == 1 for m in new_project.manifests().values())
    assert new_project.to_run() == []


def test_a_profile_that_would_lose_in_silence_is_refused(tiny: Any) -> None:
    done = tiny.snakemake("--profile", "profiles/default")
    assert done.returncode != 0
    assert "write --workflow-profile profiles/<name>" in done.stdout + done.stderr


def test_a_typo_is_named_with_its_place_by_both_commands(new_project: Any) -> None:
    config = new_project.path / "config/tiny.yaml"
    config.write_text(config.read_text().replace("learning_rate", "lerning_rate"))
    for done in (new_project.snakemake(), new_project.command("check", new_project.config)):
        assert done.returncode != 0
        assert re.search(
            r"config/tiny.yaml:\d+: pretraining.lerning_rate: unknown key; did you mean 'learning_rate'\?",
            done.stdout + done.stderr,
        )


@pytest.mark.parametrize("stage", ["ingestion", "filtering", "pretraining", "reporting"])
def test_stages_run_alone(tiny: Any, stage: str) -> None:
    done = tiny.command(stage, tiny.config)
    assert done.returncode == 0, done.stderr
    assert "there already" in done.stdout
    assert "--scope" in tiny.command(stage, "--help").stdout


def test_a_study_shares_work_and_heldout(new_project: Any) -> None:
    config = new_project.path / "config/tiny.yaml"
    config.write_text(
        config.read_text()
        + "\nablations:\n  grid:\n    filtering.rules.gopher_quality.min_doc_words: [50, 30]\n"
        + "    pretraining.learning_rate: [5e-3, 2e-3]\n  seeds: [0, 1]\n"
    )
    nodes = new_project.plan()["nodes"]
    counts = {
        n: sum(x["node"] == n and x["scope"] in ("", "help", "0-20") for x in nodes) for n in {x["node"] for x in nodes}
    }
    assert (counts["ingestion"], counts["heldout"], counts["tokenization.tokenizer"]) == (1, 1, 1)
    assert (counts["filtering"], counts["pretraining"]) == (2, 8)
