"""The command `crumb init`: write the files of a new project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from breadcrumbs.agents.models.providers import OFFLINE, forms_help
from breadcrumbs.cli.output import OK, CommandError, UsageError, command, for_people, print_json, say

commands = typer.Typer()

_AGENT: Final = "assistant"

_SETTINGS: Final = """\
# Settings of this project. Start it in this folder with: {command} up
# Every setting is optional. Flags (--port 9000) and variables (CRUMB_PORT=9000) have priority over this file.

# Model of agents that name none. Forms, with the variable of the key:
{forms}
# Try one with: {command} model check MODEL
model = {model}

# The files of this project. Paths are relative to the folder in which you start crumb.
agents = "agents"                       # agent definitions: system prompt, tools, triggers
context_config = "context.json"         # the breadcrumbs that the model sees; can be edited while it runs
tools = ["project_tools:word_count"]    # your tools, as module:function
data = "data"                           # data of the embedded server; remove it to use the data directory of your user

port = 8081
# host = "0.0.0.0"   # other machines can connect; needs an API key: {command} keys new --add

# Models that a curator can choose in the page, per session. Aliases are offered, too.
# [models]
# offered = ["ollama:llama3.2"]
# [models.aliases]
# fast = "openai:gpt-4.1-mini"
# [models.endpoints.gateway]            # then write gateway:<model>
# url = "https://gateway.example/v1"
# key_env = "GATEWAY_KEY"               # environment variable with the key
"""

_CONTEXT: Final = {
    "consumer_id": _AGENT,
    "update_triggers": [{"schema_name": "user.message.v1", "any_tags": ["user:message", "extension:chat"]}],
    "sources": [
        {
            "key": "conversation",
            "schema_name": "user.message.v1",
            "fetch": {"method": "recent", "conversation_scope": "current"},
        },
        {
            "key": "conversation",
            "schema_name": "agent.response.v1",
            "fetch": {"method": "recent", "conversation_scope": "current"},
        },
        {
            "key": "pages",
            "schema_name": "page.content.v1",
            "max_tokens": 3000,
            "fetch": {"method": "recent", "limit": 2, "conversation_scope": "current"},
        },
    ],
    "limits": [{"key": "conversation", "limit": 60, "keep": 40}],
    "output": {"schema_name": "agent.context.v1", "tags": ["agent:context"], "ttl_seconds": 3600},
    "formatting": {"max_tokens": 16000, "keep_tokens": 8000},
}

_DEFINITION: Final = {
    "agent_id": _AGENT,
    "description": "Answers in a chat, and counts words.",
    "system_prompt": (
        "You are a helpful assistant. Answer the last message. Use word_count to count words, do not guess."
    ),
    "tools": ["word_count", "calculator", "clock"],
    "subscriptions": {
        "selectors": [
            {
                "schema_name": "agent.context.v1",
                "all_tags": [f"consumer:{_AGENT}"],
                "role": "trigger",
                "key": "context",
                "fetch": {"method": "event_data"},
            }
        ]
    },
}

_TOOL: Final = '''\
"""Tools of this project. List them in crumb.toml (tools) and in an agent definition (tools)."""

from __future__ import annotations

from typing import Annotated

from breadcrumbs import tool
from pydantic import Field


@tool(timeout=5)
def word_count(text: Annotated[str, Field(description="The text whose words are counted")]) -> int:
    """Count the words of a text."""
    # The model reads the name, the docstring and the types. The return value can be any JSON value.
    return len(text.split())
'''

_TEST: Final = '''\
"""Tests of the assistant. Run them with: pytest

The fixture `crumbs` comes with Breadcrumbs: a temporary server with the agents, tools and configs of this project. The
replies of the model are in the test, so it needs no model and no key. Record a real conversation as a test with:
crumb sessions export-test SESSION
"""

from breadcrumbs.testing import Crumbs, call_tool


def test_the_assistant_counts_words_with_its_tool(crumbs: Crumbs) -> None:
    crumbs.run("assistant", replies=[call_tool("word_count", text="one two three"), "It has 3 words."])
    answer = crumbs.say("How many words has: one two three?")
    answer.saw("You are a helpful assistant.", "How many words has: one two three?")
    answer.called("word_count", text="one two three")
    assert answer.tool_calls[0].output == 3
    assert answer.text == "It has 3 words."


def test_the_assistant_remembers_the_conversation_and_sees_no_other_session(crumbs: Crumbs) -> None:
    crumbs.run("assistant", model=lambda request: f"You wrote: {request.messages[-1].content}")
    crumbs.session("other").say("A secret of another session")
    crumbs.say("My name is Ann.")
    answer = crumbs.say("What is my name?")
    answer.saw("My name is Ann.").did_not_see("A secret of another session")
'''

_IGNORED: Final = "data/\n.env\n__pycache__/\n"


@commands.command()
def init(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the project. Default: the current folder.")
    ] = Path("."),
    model: Annotated[
        str, typer.Option("--model", help="Model to write into crumb.toml, such as ollama:llama3.2.")
    ] = OFFLINE,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> int:
    """Write the files of a new project.

    These are settings, a context config, an agent, a tool and a test.

    \b
    crumb init my-project
    crumb init my-project --model ollama:llama3.2

    Existing files are not changed without --force. The project runs at once, also without a real model.
    """
    _check_model(model)
    files = _files(model)
    if not force and (existing := [name for name in files if (folder / name).exists()]):
        raise UsageError(
            f"{', '.join(existing)} already exist in {folder}: use --force to overwrite, or another folder"
        )
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    if for_people(False):
        _say_next(folder, list(files), model)
    else:
        print_json({"folder": str(folder.absolute()), "files": list(files)})
    return OK


def _check_model(model: str) -> None:
    """Raise `UsageError` if the name is not one of the known forms. Endpoints and aliases can be added later."""
    from breadcrumbs.agents.models.registry import ModelPool
    from breadcrumbs.runtime.errors import InvalidInput, StartupError

    try:
        ModelPool(environment={}).resolve(model, trusted=True)
    except StartupError:
        pass  # the key can be set later
    except InvalidInput as error:
        raise UsageError(str(error)) from None


def _files(model: str) -> dict[str, str]:
    forms = "\n".join(f"#   {line}" for line in forms_help().splitlines())
    return {
        "crumb.toml": _SETTINGS.format(command=command(), forms=forms, model=json.dumps(model)),
        "context.json": json.dumps(_CONTEXT, indent=2) + "\n",
        f"agents/{_AGENT}.json": json.dumps(_DEFINITION, indent=2) + "\n",
        "project_tools.py": _TOOL,
        f"tests/test_{_AGENT}.py": _TEST,
        ".gitignore": _IGNORED,
    }


def _say_next(folder: Path, files: list[str], model: str) -> None:
    import shlex

    program = command()
    say(f"created in {folder}: {', '.join(files)}\n\nnext:")
    if folder.resolve() != Path.cwd():
        say(f"  cd {shlex.quote(str(folder))}")
        program = shlex.quote(str(Path(program).resolve())) if "/" in program else program
    if model == OFFLINE:
        say(f"  {program} model list       choose a real model, and write it into crumb.toml")
    say(f"  {program} model check      try the model")
    say(f"  {program} up               start; then open http://127.0.0.1:8081 or run, in another terminal:")
    say(f"  {program} chat             ask, for example: How many words has this sentence?")
    say("  pytest                     run the test of the agent (pip install pytest)")
    say('  With the offline model, write: use word_count {"text": "one two three"}')
