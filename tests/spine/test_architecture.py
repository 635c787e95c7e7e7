"""The promises of the layout: who may import whom, what is light, what every rule has, what the docs quote."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from modalities import config, keys, plan, stages, study

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "modalities"
CONFIGS = sorted(p for p in (ROOT / "config").glob("*.yaml"))


def imports(path: Path) -> set[str]:
    """Names of this project's modules that a file imports, at any place."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("modalities")}


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(p): p for p in PACKAGE.rglob("*.py")}


def test_a_stage_never_imports_another_stage() -> None:
    for name, path in MODULES.items():
        own = name.split(".")[1] if name.count(".") >= 2 else None
        if own not in stages.STAGES:
            continue
        others = {i.split(".")[1] for i in imports(path) if i.count(".") >= 1} & set(stages.STAGES)
        allowed = {own} | (
            {"packing"} if own == "pretraining" else set()
        )  # the trainer reads what packing's reader yields
        assert others <= allowed, f"{name} imports {others - allowed}"


def test_there_are_no_import_cycles() -> None:
    graph = {name: {i for i in imports(path) if i in MODULES and i != name} for name, path in MODULES.items()}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join([*way[way.index(name) :], name])
        if name not in done:
            for other in graph[name]:
                visit(other, (*way, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_every_stage_has_its_noun_in_five_places() -> None:
    helped = subprocess.run(
        [sys.executable, "-m", "modalities", "--help"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout
    sections = {f for f, _, _ in config.walk(stages.RunConfig) if "." not in f}
    for stage in stages.STAGES:
        assert (PACKAGE / stage / "config.py").exists()
        assert (ROOT / "rules" / f"{stage}.smk").exists()
        assert (ROOT / "tests" / stage).is_dir()
        assert stage in helped
        assert stage in sections


def test_every_node_has_a_rule_with_all_directives_and_no_retries() -> None:
    text = "\n".join(p.read_text() for p in sorted((ROOT / "rules").glob("*.smk")))
    rules = dict(re.findall(r"^rule (\w+):\n(.*?)(?=^rule |\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(rules) == {node.rule for node in stages.NODES.values()}
    for name, body in rules.items():
        for directive in ("input", "output", "log", "benchmark", "conda", "threads", "resources", "shell"):
            assert f"    {directive}:" in body, f"rule {name} has no {directive}"
        assert "retries" not in body
    assert len((ROOT / "workflow/Snakefile").read_text().splitlines()) < 40


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.name)
def test_every_shipped_config_can_be_used(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    tree = config.override(config.read(path), "runtime.store", config.from_python(str(tmp_path / "store"), "test"))
    assert study.arms(tree)
    assert plan.resolve(tree).instances


def test_the_demo_config_is_short_and_the_readme_quotes_it() -> None:
    text = (ROOT / "config/demo.yaml").read_text()
    assert len(text.splitlines()) <= 60
    readme = (ROOT / "README.md").read_text()
    assert "\n".join("    " + line if line else "" for line in text.strip().splitlines()) in readme


def test_the_key_reference_is_up_to_date() -> None:
    assert (ROOT / "config/README.md").read_text() == keys.markdown(), "run: modalities keys > config/README.md"


def test_every_key_says_what_it_means() -> None:
    for path, _, field in config.walk(stages.RunConfig):
        assert field.metadata.get("help"), path
        assert field.metadata["kind"] in ("result", "numerics", "runtime"), path


def test_environment_files_agree() -> None:
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert {"pip": ["-e .[dev]"]} in conda["dependencies"], "versions stand in pyproject.toml alone"
    assert any(str(d).startswith("python=3.11") for d in conda["dependencies"])


def test_no_pickle_is_written_or_read_but_by_the_allow_lists() -> None:
    allowed = {"modalities.checkpoint", "modalities.tokenization.pbin"}
    for name, path in MODULES.items():
        text = path.read_text()
        if name not in allowed:
            assert "pickle" not in re.sub(r'""".*?"""|#.*', "", text, flags=re.DOTALL), name
        assert not re.search(r"torch\.load\((?!.*weights_only=True)", text), name
        assert "trust_remote_code=True" not in text, name
        assert "yaml.load(" not in text.replace(
            'yaml.load(path.read_text(encoding="utf-8"), Loader=_TaskLoader)', ""
        ), name
