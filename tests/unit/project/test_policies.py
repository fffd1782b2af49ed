"""The documents about contributing, stability, data and releases agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from breadcrumbs.runtime.store.opening import FORMAT

ROOT = Path(__file__).resolve().parents[3]
RECIPES = {
    "Add a route",
    "Add a fetch method",
    "Add a model provider",
    "Add a tool",
    "Add a CLI command",
    "Add a setting",
    "Add a script",
    "Add a page",
}
PATH = re.compile(r"`((?:runtime|context_builder|agents|breadcrumbs|config|docs|tests|web)/[\w./-]+)`")


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def recipes() -> dict[str, str]:
    """Return the text of each recipe in CONTRIBUTING.md."""
    chapter = read("CONTRIBUTING.md").partition("\n## Recipes\n")[2].partition("\n## ")[0]
    titles = re.split(r"^### (.+)$", chapter, flags=re.MULTILINE)[1:]
    return dict(zip(titles[::2], titles[1::2], strict=True))


def test_there_is_a_recipe_for_every_kind_of_change() -> None:
    assert recipes().keys() >= RECIPES


@pytest.mark.parametrize("title", sorted(RECIPES))
def test_a_recipe_names_files_that_exist_and_how_to_check(title: str) -> None:
    text = recipes()[title]
    paths = PATH.findall(text)
    assert len(paths) >= 3
    assert [path for path in paths if not (ROOT / path).exists()] == []
    (check,) = re.findall(r"Check with `\./crumb test ([^`]+)`", text)
    assert [path for path in check.split() if not (ROOT / path).exists()] == []


# Names in the recipes, each with the file that has to contain it.
NAMES = {
    "OPERATIONS": "runtime/http/app.py",
    "RULES": "runtime/access/policy.py",
    "apiPaths": "web/vite.config.ts",
    "_describe_source": "context_builder/config.py",
    "_plan": "runtime/retrieval/sources.py",
    "publish": "context_builder/config.py",
    "sourceInWords": "web/src/lib/contexts.ts",
    "PRESETS": "agents/models/providers.py",
    "test_a_provider_is_found_by_its_name": "tests/agents/test_models_registry.py",
    "TransientModelError": "agents/models/base.py",
    "_spec_advice": "agents/models/registry.py",
    "SHIPPED": "agents/tools/shipped.py",
    "for_people": "breadcrumbs/cli/output.py",
    "PROMISED": "tests/unit/cli/test_commands.py",
    "WriteScripts": "runtime/store/script_calls.py",
    "ScriptCall": "runtime/backend/connection.py",
    "test_the_header_of_a_script_lists_its_codes_by_name": "tests/unit/store/test_script_replies.py",
    "PAGES": "web/src/lib/router.ts",
    "serious": "tests/web/accessibility.py",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_the_recipes_is_in_the_file_that_they_name(name: str) -> None:
    text = "".join(recipes().values())
    assert name in text and NAMES[name] in text
    assert re.search(rf"\b{re.escape(name)}\b", read(NAMES[name]))


def test_the_data_format_document_lists_the_format_of_the_code_and_all_fixtures() -> None:
    text = read("docs/data-format.md")
    formats = re.findall(r"^\| (\d+) \| [\d.]+ \| [\d.]+ \|$", text, re.MULTILINE)
    assert formats[-1] == FORMAT and formats == [str(number) for number in range(1, int(FORMAT) + 1)]
    for folder in (ROOT / "tests" / "fixtures").glob("written_by_*"):
        assert folder.name.removeprefix("written_by_") in text


def test_the_stability_document_names_everything_that_can_be_imported() -> None:
    text = read("docs/stability.md")
    for module in (
        "breadcrumbs.__all__",
        "breadcrumbs.adk",
        "breadcrumbs.langchain",
        "breadcrumbs.openai_agents",
    ):
        assert f"`{module}`" in text


def test_the_release_checklist_names_the_commands_of_a_release() -> None:
    text = read("docs/releasing.md")
    for module in re.findall(r"python -m ([\w.]+)", text):
        assert (ROOT / Path(*module.split("."))).with_suffix(".py").is_file(), module
    assert "tests.support.release_version" in text and "tests.support.release_notes" in text
    assert (ROOT / ".github" / "workflows" / "release.yml").is_file()


def test_the_changelog_uses_the_headings_of_keep_a_changelog() -> None:
    text = read("CHANGELOG.md")
    releases = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert releases and all(
        re.fullmatch(r"\d+\.\d+\.\d+ - (\d{4}-\d{2}-\d{2}|unreleased)", one) for one in releases
    )
    kinds = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_security_problems_are_reported_in_private() -> None:
    text = " ".join(read("SECURITY.md").split())
    assert "Report a vulnerability" in text and "Do not open a public issue" in text
    assert "(SECURITY.md)" in read("CONTRIBUTING.md")
