"""Commands on agents: `crumb agents list`, `show`, `check` and `try`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from breadcrumbs.cli.client import open_client, send_json
from breadcrumbs.cli.completion import agent_names
from breadcrumbs.cli.options import DEFAULT_URL, JsonOption, TokenOption, UrlOption
from breadcrumbs.cli.output import (
    OK,
    PROBLEM,
    CommandError,
    UsageError,
    for_people,
    one_line,
    print_columns,
    print_json,
    say,
    visible,
)

if TYPE_CHECKING:
    from breadcrumbs.client.sync import Client

_MAX_BYTES: Final = 1 << 20

commands = typer.Typer(
    name="agents",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List agents, check definitions and try them.

    \b
    crumb agents list
    crumb agents check poet.json
    crumb agents try poet.json "Write about rain"
    """,
)

FileArgument = Annotated[str, typer.Argument(help="Definition (JSON), - for standard input.")]


@commands.command("list")
def list_all(url: UrlOption = DEFAULT_URL, token: TokenOption = None, as_json: JsonOption = False) -> int:
    """List the agents in force: of files, of breadcrumbs and of programs.

    \b
    crumb agents list
    crumb agents list --json | jq '.agents[] | select(.answers_users).agent_id'

    An agent that answers users answers messages without additional tags. The setting answering decides if several do.
    """
    with open_client(url, token) as client:
        document = _overview(client)
    if not for_people(as_json):
        print_json(document)
        return OK
    rows = [_row(agent) for agent in document["agents"]]
    headers = ["AGENT", "SOURCE", "ANSWERS", "MODEL", "TOOLS", "LAST ERROR"]
    print_columns(rows, ["bold", "", "", "", ""], headers)
    for entry in document["unusable"]:
        say(
            f"not used: {entry['breadcrumb_id']} ({one_line(entry['title'], 60)}): {visible(entry['problem'])}"
        )
    say(f"if several agents match a message: {document['answering']} (setting answering)")
    return OK


@commands.command("show")
def show(
    name: Annotated[str, typer.Argument(help="The agent_id of an agent.", autocompletion=agent_names)],
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
) -> int:
    """Print everything that is known about an agent, as JSON.

    \b
    crumb agents show poet
    crumb agents show poet | jq .definition > poet.json
    """
    with open_client(url, token) as client:
        agents = _overview(client)["agents"]
    for agent in agents:
        if agent["agent_id"] == name:
            print_json(agent)
            return OK
    names = ", ".join(one_line(agent["agent_id"]) for agent in agents[:20]) or "none"
    raise CommandError(f"there is no agent {one_line(name)!r}. Agents in force: {names}")


@commands.command("check")
def check(
    file: FileArgument,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check a definition and report errors and warnings.

    \b
    crumb agents check poet.json
    crumb post --schema agent.def.v1 --title poet --context @poet.json

    Warnings are about unknown fields, tools and models, and about agents that trigger each other.
    The exit code is 1 if the definition cannot be used. Without a server, tools and models are not checked.
    """
    raw = _read(file)
    document = _check_with_server(raw, url, token) or _check_here(raw)
    if not for_people(as_json):
        print_json(document)
    else:
        _print_problems(file, document)
        if document["ok"]:
            say(f"{visible(document['agent_id'])} can be used")
    return OK if document["ok"] else PROBLEM


@commands.command("try")
def try_definition(
    file: FileArgument,
    message: Annotated[str, typer.Argument(help="The message that the agent answers.")],
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Call the model of a definition with one message. Nothing is stored.

    \b
    crumb agents try poet.json "Write about rain"

    The server makes the calls, with its models. Only built-in tools run. There is no session, so the model sees the
    system prompt and the message.
    """
    text = _decode(_read(file))
    with open_client(url, token) as client:
        result = send_json(client, "POST", "/agents/try", {"text": text, "message": message}).json()
    if not for_people(as_json):
        print_json(result)
    else:
        _print_trial(file, result)
    return PROBLEM if "error" in result else OK


def _overview(client: Client) -> dict[str, Any]:
    document: dict[str, Any] = client.request("GET", "/agents/in-force").json()
    return document


def _row(agent: dict[str, Any]) -> list[str]:
    answers = "yes" if agent["answers_users"] else "no"
    if agent["fallback"]:
        answers = "if no other"
    source = agent["source"] if agent["running"] else f"{agent['source']}, stopped"
    return [
        one_line(agent["agent_id"], 60),
        source,
        answers,
        one_line(agent.get("model", "default"), 40),
        str(len(agent["tools"])),
        one_line(agent.get("problem") or agent.get("last_error", {}).get("error", "")),
    ]


# Definitions


def _read(file: str) -> bytes:
    try:
        raw = sys.stdin.buffer.read(_MAX_BYTES + 1) if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {visible(file)}: {error.strerror}") from None
    if len(raw) > _MAX_BYTES:
        raise UsageError(f"{visible(file)} is larger than {_MAX_BYTES >> 20} MiB")
    return raw


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise UsageError("the definition is not UTF-8: save it as UTF-8") from None


def _check_with_server(raw: bytes, url: str, token: str | None) -> dict[str, Any] | None:
    """Return the result of the server, or None if there is no server."""
    from breadcrumbs.client.errors import ServerUnreachable

    text = _decode(raw)
    try:
        with open_client(url, token) as client:
            document: dict[str, Any] = send_json(client, "POST", "/agents/check", {"text": text}).json()
    except ServerUnreachable:
        say("no server: tools, models and other agents are not checked")
        return None
    return document


def _check_here(raw: bytes) -> dict[str, Any]:
    from breadcrumbs.agents.definition_checks import check_text

    checked = check_text(raw)
    document: dict[str, Any] = {"ok": checked.definition is not None}
    if checked.definition is not None:
        document["agent_id"] = checked.definition.agent_id
    return document | {
        "errors": [error.as_dict() for error in checked.errors],
        "warnings": [warning.as_dict() for warning in checked.warnings],
    }


def _print_problems(file: str, document: dict[str, Any]) -> None:
    for label, problems in (("error", document["errors"]), ("warning", document["warnings"])):
        for problem in problems:
            position = f":{problem['line']}:{problem['column']}" if "line" in problem else ""
            where = f"{problem['where']}: " if problem["where"] else ""
            say(f"{visible(file)}{position}: {label}: {visible(where + problem['message'])}")


def _print_trial(file: str, result: dict[str, Any]) -> None:
    _print_problems(file, {"errors": [], "warnings": result["warnings"]})
    for call in result["tool_calls"]:
        outcome = call.get("error") or call.get("output")
        say(f"tool {one_line(call['name'], 60)} {one_line(call['arguments'], 80)}: {one_line(outcome, 120)}")
    if "error" in result:
        say(f"no answer: {visible(result['error'])}")
    else:
        sys.stdout.write(visible(result["answer"]) + "\n")
    tokens = [
        f"{result[name]:,} {label}"
        for name, label in (("input_tokens", "input tokens"), ("output_tokens", "output tokens"))
        if name in result
    ]
    say(", ".join([result["model"], f"{result['calls']} calls", f"{result['duration_ms']:,} ms", *tokens]))
