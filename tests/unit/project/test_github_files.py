"""Workflow files and the other files for GitHub are valid, pinned, and run what a developer runs.

The schemas are those that GitHub's editors use. `check-jsonschema` brings them, so no network is needed. A schema does
not know which jobs, files and values exist, so `workflow_errors` checks those.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema.validators import validator_for

ROOT = Path(__file__).resolve().parents[3]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

ACTIONS = {
    "actions/checkout": "v7",
    "actions/download-artifact": "v8",
    "actions/setup-node": "v7",
    "actions/setup-python": "v7",
    "actions/upload-artifact": "v7",
    "pypa/gh-action-pypi-publish": "release/v1",
}
"""Every action in use, with the one version that all workflows use."""

EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
CONTEXT = re.compile(r"\b(github|matrix|runner|env|secrets|inputs|needs|steps)\.(\w+)")


class _Loader(yaml.SafeLoader):
    """Reads `on` as text. YAML 1.1 reads it as true."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool" or first not in "oO"
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.load(path.read_text("utf-8"), _Loader)
    return document


@cache
def validator(schema: str) -> Any:
    """Return a validator for one of the schemas that `check-jsonschema` brings along."""
    file = resources.files("check_jsonschema").joinpath("builtin_schemas", "vendor", f"{schema}.json")
    document = json.loads(file.read_text("utf-8"))
    return validator_for(document)(document)


def schema_errors(schema: str, document: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator(schema).iter_errors(document)]


def workflow_errors(workflow: dict[str, Any]) -> Iterator[str]:
    """Report what no schema can know."""
    if workflow.get("permissions") != {"contents": "read"}:
        yield "the permissions of a workflow are `contents: read`: a job that needs more declares it"
    jobs = workflow["jobs"]
    for name, job in jobs.items():
        needs = job.get("needs", [])
        for needed in [needs] if isinstance(needs, str) else needs:
            if needed not in jobs:
                yield f"{name} needs {needed}, which is not a job"
        if "uses" in job:
            if not (ROOT / job["uses"]).is_file():
                yield f"{name} uses {job['uses']}, which does not exist"
            continue
        if "timeout-minutes" not in job:
            yield f"{name} has no timeout-minutes"
        yield from _expression_errors(name, job)
        for step in job["steps"]:
            if ("uses" in step) == ("run" in step):
                yield f"a step of {name} has both or neither of uses and run"
            if "uses" in step:
                action, _, version = step["uses"].partition("@")
                if ACTIONS.get(action) != version:
                    yield f"{step['uses']} is not one of the actions and versions in use"
            if "run" in step and subprocess.run(["bash", "-n", "-c", step["run"]], check=False).returncode:
                yield f"a command of {name} is no shell script"
            if "run" in step and "${{" in step["run"]:
                yield f"a command of {name} contains an expression: pass it by env, or its value becomes code"


def _expression_errors(name: str, job: dict[str, Any]) -> Iterator[str]:
    matrix = job.get("strategy", {}).get("matrix", {})
    for expression in EXPRESSION.findall(yaml.safe_dump(job, width=10_000)):
        contexts = CONTEXT.findall(expression)
        if not contexts:
            yield f"{name} has an expression without a context: {expression}"
        for context, key in contexts:
            if context == "matrix" and key not in matrix:
                yield f"{name} uses matrix.{key}, which is not in its matrix"
            if context == "secrets":
                yield f"{name} uses a secret: publishing and releases need none"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_valid(path: Path) -> None:
    assert schema_errors("github-workflows", load(path)) == []
    assert list(workflow_errors(load(path))) == []


def test_there_are_workflows_for_tests_documents_wheels_and_releases() -> None:
    assert [path.name for path in WORKFLOWS] == ["docs.yml", "release.yml", "tests.yml", "wheel.yml"]


def _set(*keys: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return change


SCHEMA_VIOLATIONS: dict[str, Callable[[dict[str, Any]], None]] = {
    "an unknown key": _set("jobs", "tests", "run-on", value="ubuntu-latest"),
    "a wrong type": _set("jobs", "tests", "timeout-minutes", value=[60]),
    "an unknown event": _set("on", "pull_requests", value={}),
    "a job without a machine": lambda document: document["jobs"]["tests"].pop("runs-on"),
    "no jobs": lambda document: document.pop("jobs"),
}


@pytest.mark.parametrize("violation", SCHEMA_VIOLATIONS)
def test_a_workflow_that_github_would_refuse_is_found(violation: str) -> None:
    document = load(GITHUB / "workflows" / "tests.yml")
    SCHEMA_VIOLATIONS[violation](document)
    assert schema_errors("github-workflows", document) != []


VIOLATIONS: dict[str, Callable[[dict[str, Any]], None]] = {
    "which is not a job": _set("jobs", "tests", "needs", value="nothing"),
    "which does not exist": _set("jobs", "tests", value={"uses": "./.github/workflows/nothing.yml"}),
    "has no timeout-minutes": lambda document: document["jobs"]["tests"].pop("timeout-minutes"),
    "both or neither": _set("jobs", "tests", "steps", 0, value={"name": "nothing"}),
    "not one of the actions": _set("jobs", "tests", "steps", 0, "uses", value="actions/checkout@v1"),
    "is no shell script": _set("jobs", "tests", "steps", -1, "run", value="if true; then"),
    "its value becomes code": _set("jobs", "tests", "steps", -1, "run", value="echo ${{ github.ref }}"),
    "which is not in its matrix": _set("jobs", "tests", "runs-on", value="${{ matrix.system }}"),
    "without a context": _set("jobs", "tests", "runs-on", value="${{ os }}"),
    "uses a secret": _set("jobs", "tests", "env", value={"TOKEN": "${{ secrets.TOKEN }}"}),
    "`contents: read`": _set("permissions", value="write-all"),
}


@pytest.mark.parametrize("error", VIOLATIONS)
def test_a_mistake_that_a_schema_does_not_know_is_found(error: str) -> None:
    document = load(GITHUB / "workflows" / "tests.yml")
    VIOLATIONS[error](document)
    assert any(error in found for found in workflow_errors(document))


def commands(name: str) -> list[str]:
    jobs = load(GITHUB / "workflows" / name)["jobs"].values()
    return [step["run"].strip() for job in jobs for step in job.get("steps", []) if "run" in step]


def test_the_tests_run_the_command_that_a_developer_runs() -> None:
    assert ".ci/run" in commands("tests.yml")
    *_, last = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert last == 'exec "$(dirname "${BASH_SOURCE[0]}")/../crumb" test'
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_tests_run_on_every_python_and_system_that_the_package_claims() -> None:
    matrix = load(GITHUB / "workflows" / "tests.yml")["jobs"]["tests"]["strategy"]["matrix"]
    classifiers = PROJECT["project"]["classifiers"]
    claimed = [found[1] for text in classifiers if (found := re.fullmatch(r".*Python :: (3\.\d+)", text))]
    assert matrix["python"] == claimed == ["3.11", "3.12", "3.13", "3.14"]
    assert f">={claimed[0]}" == PROJECT["project"]["requires-python"]
    assert matrix["os"] == ["ubuntu-latest", "macos-latest"]
    assert {"Operating System :: MacOS", "Operating System :: POSIX :: Linux"} <= set(classifiers)


def test_the_tests_that_the_documents_workflow_names_exist() -> None:
    command, build = commands("docs.yml")
    assert build == ".venv/bin/python docs/build_site.py"
    program, what, *paths = command.split()
    assert (program, what) == ("./crumb", "test")
    assert len(paths) > 4 and [path for path in paths if not (ROOT / path).exists()] == []


def test_a_release_is_published_after_all_checks_and_without_a_token() -> None:
    workflow = load(GITHUB / "workflows" / "release.yml")
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    jobs = workflow["jobs"]
    assert jobs["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert jobs["wheel"]["uses"] == "./.github/workflows/wheel.yml"
    publish = jobs["publish"]
    assert publish["needs"] == ["tests", "wheel"]
    assert publish["environment"]["name"] == "pypi"
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["steps"][-1] == {"uses": "pypa/gh-action-pypi-publish@release/v1"}
    writers = [name for name, job in jobs.items() if job.get("permissions", {}).get("contents") == "write"]
    assert writers == ["release"] and jobs["release"]["needs"] == "publish"


def test_workflows_that_another_one_calls_can_be_called() -> None:
    for path in WORKFLOWS:
        for job in load(path)["jobs"].values():
            if "uses" in job:
                assert "workflow_call" in load(ROOT / job["uses"])["on"]


def test_artifacts_are_uploaded_before_they_are_downloaded() -> None:
    steps = [
        step
        for path in WORKFLOWS
        for job in load(path)["jobs"].values()
        for step in job.get("steps", [])
        if "-artifact@" in step.get("uses", "")
    ]
    names = {
        kind: {step["with"]["name"] for step in steps if kind in step["uses"]}
        for kind in ("upload", "download")
    }
    assert names["upload"] == names["download"] == {"dist", "notes"}


# Other files for GitHub


def test_issue_forms_and_dependabot_are_valid() -> None:
    forms = [path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    assert {path.name for path in forms} == {"bug_report.yml", "feature_request.yml"}
    for path in forms:
        assert schema_errors("github-issue-forms", load(path)) == [], path.name
    assert schema_errors("github-issue-config", load(GITHUB / "ISSUE_TEMPLATE" / "config.yml")) == []
    assert schema_errors("dependabot", load(GITHUB / "dependabot.yml")) == []


def test_every_path_with_an_owner_exists() -> None:
    lines = [line.split() for line in (GITHUB / "CODEOWNERS").read_text("utf-8").splitlines()]
    rules = [(path, owners) for path, *owners in (line for line in lines if line and line[0] != "#")]
    assert rules[0][0] == "*"
    for path, owners in rules:
        assert owners and all(re.fullmatch(r"@[\w-]+(/[\w-]+)?", owner) for owner in owners), path
        assert path == "*" or (ROOT / path.lstrip("/")).exists(), path


# Files for editors and Git


def test_hooks_run_the_tools_of_the_environment_on_files_that_exist() -> None:
    config = load(ROOT / ".pre-commit-config.yaml")
    (repository,) = config["repos"]
    assert repository["repo"] == "local"  # the versions are those of constraints.txt
    files = [
        file.relative_to(ROOT).as_posix()
        for name in (".github", "breadcrumbs")
        for file in (ROOT / name).rglob("*")
    ]
    tools = Path(sys.executable).parent
    for hook in repository["hooks"]:
        assert {"id", "name", "entry", "language"} <= hook.keys()
        program, *arguments = hook["entry"].split()
        assert (tools / Path(program).name).exists() and program.startswith(".venv/bin/"), hook["id"]
        if arguments[:1] == ["-m"]:
            assert (ROOT / Path(*arguments[1].split("."))).with_suffix(".py").is_file()
        assert any(re.search(hook.get("files", ""), name) for name in files), hook["id"]
    assert {"ruff-check", "ruff-format", "mypy", "workflows"} <= {hook["id"] for hook in repository["hooks"]}


def test_editors_use_the_line_length_and_the_indentation_of_the_code() -> None:
    text = (ROOT / ".editorconfig").read_text("utf-8")
    preamble, *sections = re.split(r"^\[(.+)\]$", text, flags=re.MULTILINE)
    assert "root = true" in preamble
    options = {
        name: dict(re.findall(r"^(\w+) = (\w+[\w-]*)$", body, re.MULTILINE))
        for name, body in zip(sections[::2], sections[1::2], strict=True)
    }
    assert options["*"]["max_line_length"] == str(
        PROJECT["tool"]["ruff"]["lint"]["pycodestyle"]["max-line-length"]
    )
    assert options["*"]["end_of_line"] == "lf"
    assert options["*.{py,pyi,toml}"]["indent_size"] == "4"
