"""Recorded conversations as test cases: they pass at once, and fail when a prompt, a tool or an answer changes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from breadcrumbs import tool
from breadcrumbs.proofs.recording import record_session
from breadcrumbs.testing import Crumbs, ModelError, call_tool
from breadcrumbs.testing.recordings import replay_file, write_test
from tests.kit.test_assertions import HELPER, double


def record(crumbs: Crumbs, session: str = "test") -> dict[str, Any]:
    recording = crumbs.server.portal.call(record_session, crumbs.server.store, crumbs.owner, session)
    return json.loads(json.dumps(recording))  # type: ignore[no-any-return]


@pytest.fixture
def recorded(crumbs: Crumbs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording of two messages, with a tool call, an attached page and a shared note."""
    crumbs.run(
        HELPER,
        tools=[double],
        replies=[
            call_tool("double", number=4),
            "It is 8.",
            "You are welcome.",
            ModelError("overloaded", retry=False),
        ],
    )
    crumbs.say("Twice 4?", tags=["user:ann"])
    crumbs.post("page.content.v1", {"title": "News", "content": "It rains."})
    crumbs.say("Thanks").saw("It rains.", "It is 8.")
    with pytest.raises(Exception, match="overloaded"):
        crumbs.say("Once more")
    crumbs.stop()
    monkeypatch.setitem(vars(crumbs.project), "tools", [double])
    return write_test(record(crumbs), tmp_path / "test_demo.py")[1]


def change(path: Path, change: Any) -> None:
    recording = json.loads(path.read_text())
    change(recording)
    path.write_text(json.dumps(recording))


def test_a_recording_passes_at_once_and_is_readable(crumbs: Crumbs, recorded: Path) -> None:
    answers = replay_file(crumbs, recorded)
    assert [answer.text for answer in answers] == ["It is 8.", "You are welcome."]
    first, second, third = json.loads(recorded.read_text())["turns"]
    assert (first["message"], first["tags"]) == ("Twice 4?", ["user:ann"])
    assert first["answers"][0]["calls"][0]["reply"]["tools"][0]["result"] == {"output": 8}
    assert second["before"][0]["context"] == {"title": "News", "content": "It rains."}
    assert second["answers"][0]["calls"][0]["prompt"]["keeps"] > 0
    assert third["answers"] == [{"agent": "helper", "error": "overloaded"}]
    assert (recorded.parent / "test_demo.py").read_text().count("\n") == 7


def test_a_changed_system_prompt_fails_with_the_difference(crumbs: Crumbs, recorded: Path) -> None:
    change(recorded, lambda found: found["agents"]["helper"].update(system_prompt="Be rude."))
    with pytest.raises(AssertionError) as failed:
        replay_file(crumbs, recorded)
    assert "message 1, helper: the prompt of model call 1 changed" in str(failed.value)
    assert "-system: Be kind." in str(failed.value) and "+system: Be rude." in str(failed.value)


def test_a_changed_answer_fails_and_an_update_accepts_it(crumbs: Crumbs, recorded: Path) -> None:
    change(recorded, lambda found: found["turns"][1]["answers"][0]["calls"][0]["reply"].update(text="Bye."))
    with pytest.raises(AssertionError, match=r"the answer changed:(.|\n)*-You are welcome.(.|\n)*\+Bye."):
        replay_file(crumbs, recorded)
    replay_file(crumbs, recorded, update=True)
    assert [answer.text for answer in replay_file(crumbs, recorded)] == ["It is 8.", "Bye."]


def test_a_changed_tool_schema_fails(crumbs: Crumbs, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @tool(name="double")
    def other(number: int) -> int:
        """Return the number two times."""
        return number + number

    monkeypatch.setitem(vars(crumbs.project), "tools", [other])
    with pytest.raises(AssertionError, match="the tools of the prompt changed"):
        replay_file(crumbs, recorded)


def test_a_project_of_crumb_init_contains_a_test_that_passes(tmp_path: Path) -> None:
    crumb = Path(sys.executable).parent / "crumb"
    subprocess.run([crumb, "init", "."], cwd=tmp_path, check=True, capture_output=True)
    installed = any(entry.value == "breadcrumbs.testing.plugin" for entry in entry_points(group="pytest11"))
    options = [] if installed else ["-p", "breadcrumbs.testing.plugin"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0 and "2 passed" in ended.stdout, ended.stdout + ended.stderr


def test_the_plugin_loads_nothing_for_people_who_do_not_use_it() -> None:
    check = (
        "import sys, breadcrumbs.testing.plugin; "
        "print(sorted(name for name in sys.modules if name.startswith('breadcrumbs')), 'pydantic' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ended.stdout == "['breadcrumbs', 'breadcrumbs.testing', 'breadcrumbs.testing.plugin'] False\n"
