"""Files of test cases from recorded conversations, for `crumb sessions export-test` and `crumb replay --save-test`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from breadcrumbs.cli.output import CommandError, UsageError, say
from breadcrumbs.runtime.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Mapping


def default_path(session: str) -> Path:
    """Return the file of a test without --output: in the folder `tests`, if there is one."""
    name = re.sub(r"[^a-z0-9]+", "_", session.lower()).strip("_")[:40] or "session"
    folder = Path("tests") if Path("tests").is_dir() else Path()
    return folder / f"test_{name}.py"


def save_test(recording: dict[str, Any], path: Path, *, force: bool) -> list[Path]:
    """Write a recording and its test. Raise `UsageError` if a file exists, unless `force`."""
    from breadcrumbs.testing.project import find_project
    from breadcrumbs.testing.recordings import bind_to_project, write_test

    if path.suffix not in (".py", ""):
        raise UsageError(f"{path} is not a Python file: use a name such as test_demo.py")
    existing = [one for one in (path.with_suffix(".py"), path.with_suffix(".json")) if one.exists()]
    if existing and not force:
        raise UsageError(f"{existing[0]} exists: use --force to overwrite it, or another --output")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        project = find_project(path.parent.resolve(), Path(path.anchor or "/"))
        return write_test(bind_to_project(recording, project), path.with_suffix(".py"))
    except OSError as error:
        raise CommandError(f"cannot write {error.filename or path}: {error.strerror}") from None
    except StartupError as error:
        raise CommandError(f"the project of {path} cannot be loaded: {error}") from None


def say_written(files: list[Path], recording: Mapping[str, Any]) -> None:
    """Tell what the files are for."""
    own = [f"agent {name}" for name, value in recording["agents"].items() if value != "project"]
    say(f"wrote {' and '.join(map(str, files))}. Run it with: pytest {files[0]}")
    for note in recording.get("notes", ()):
        say(f"note: {note}")
    if own:
        say(
            f"note: {', '.join(own)} is not a file of this project, or differs from it. The test contains its "
            "definition, so it does not notice changes of it"
        )


def update_prompts(path: Path) -> None:
    """Run a recorded test once on a temporary server, and store its prompts and answers."""
    import tempfile

    from breadcrumbs.composition.temporary_servers import temporary_server
    from breadcrumbs.testing.crumbs import open_crumbs
    from breadcrumbs.testing.recordings import replay_file

    folder = path.parent.resolve()
    with (
        tempfile.TemporaryDirectory() as data,
        temporary_server(Path(data)) as server,
        open_crumbs(server, folder, Path("/")) as crumbs,
    ):
        replay_file(crumbs, path.resolve().with_suffix(".json"), update=True)


def with_replay(recording: dict[str, Any], replay: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recording whose last answer is the one of a replay. `replay` is the document of `crumb replay`."""
    result = replay["replays"][-1]
    (answer,) = [
        one
        for one in recording["turns"][-1]["answers"]
        if one["agent"] == replay["agent_id"] and "calls" in one
    ]
    results = {
        (tool["name"], tool["arguments"]): tool["result"]
        for call in answer["calls"]
        for tool in call["reply"].get("tools", ())
    }
    missing = {"error": "the recorded turn has no response for this call"}
    steps: dict[str, list[dict[str, Any]]] = {}
    for number, tool in enumerate(result.get("tool_calls", ()), 1):
        name, arguments = tool["name"], tool["arguments"]
        steps.setdefault(tool["step"].partition(".")[0], []).append(
            {
                "id": f"call_{number}",
                "name": name,
                "arguments": arguments,
                "result": results.get((name, arguments), missing),
            }
        )
    replies: list[dict[str, Any]] = [{"text": "", "tools": tools} for tools in steps.values()]
    answer["calls"] = [{"reply": reply} for reply in [*replies, {"text": result["text"]}]]
    answer["answer"] = result["text"]
    return recording
