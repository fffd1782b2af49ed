"""The commands `crumb config …`: the history of context configs, and rollback.

They ask the running server. `crumb context …` explains contexts and checks config files.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from breadcrumbs.cli.client import open_client, send_json
from breadcrumbs.cli.options import DEFAULT_URL, JsonOption, TokenOption, UrlOption
from breadcrumbs.cli.output import (
    OK,
    CommandError,
    UsageError,
    command,
    for_people,
    print_columns,
    print_json,
    say,
    shown_time,
    visible,
)

if TYPE_CHECKING:
    from breadcrumbs.client.sync import Client

configs = typer.Typer(
    name="config",
    short_help="Show past context configs, compare them, and roll back.",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Show the context configs that were in force, compare them, and roll back.

    \b
    crumb config log                 list the configs and when they were in force
    crumb config show d84c           print one of them
    crumb config diff d84c           compare it with the config in force
    crumb config rollback d84c       make it the config in force again

    The server keeps every config that a context was built with: the contents of the config file, and
    context.config.v1 breadcrumbs. A config is named by the beginning of its digest.
    """,
)

_PATH = "/contexts/config/log"
_MIN_PREFIX = 4

DigestArgument = Annotated[
    str, typer.Argument(metavar="DIGEST", help="Digest of a config, or its beginning.")
]
ConsumerOption = Annotated[str | None, typer.Option("--consumer", help="Only configs of this consumer.")]


@configs.command("log")
def config_log(
    consumer: ConsumerOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=2_000, help="Maximum number of entries.")
    ] = 50,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """List the configs that were in force, the newest first.

    \b
    crumb config log
    crumb config log --consumer default-chat-assistant --json

    The mark * shows the config that is in force now. A config is listed after the first turn that used it.
    """
    with open_client(url, token) as client:
        entries = _entries(client, consumer)
    if not for_people(as_json):
        print_json(entries[:limit])
        return OK
    if not entries:
        say("no config was used yet: a config is listed after the first turn that used it")
        return OK
    rows = [
        ["*" if entry["in_force"] else " ", entry["digest"][:12], shown_time(entry["at"]), entry["consumer_id"],
         entry["source"]]
        for entry in entries[:limit]
    ]  # fmt: skip
    print_columns(rows, ["green", "cyan", "dim", ""], ["", "DIGEST", "IN FORCE SINCE", "CONSUMER", "SOURCE"])
    if len(entries) > limit:
        say(f"{len(entries) - limit:,} older entries are not shown: use --limit")
    return OK


@configs.command("show")
def config_show(
    digest: DigestArgument,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print a config that is or was in force.

    \b
    crumb config show d84c
    crumb config show d84c > context.json

    The output is a valid config file. With --json, it also contains the digest, the consumer and the time.
    """
    with open_client(url, token) as client:
        shown = _show(client, digest)
    print_json(shown if as_json else shown["config"])
    return OK


@configs.command("diff")
def config_diff(
    before: DigestArgument,
    after: Annotated[
        str | None,
        typer.Argument(metavar="[DIGEST]", help="Config to compare with. [default: the config in force]"),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Compare two configs line by line.

    \b
    crumb config diff d84c           from this config to the one in force
    crumb config diff d84c 71fe

    Values that are defaults are left out of both.
    """
    with open_client(url, token) as client:
        old = _show(client, before)
        new = _show(client, after or _digest_in_force(client, old["consumer_id"]))
    lines = _unified(old, new)
    if as_json:
        print_json({"before": old, "after": new, "diff": lines})
    elif lines:
        _print_diff(lines)
    else:
        say("the configs are equal")
    return OK


@configs.command("rollback")
def config_rollback(
    digest: DigestArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would change.")] = False,
    url: UrlOption = DEFAULT_URL,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make a past config the config in force again.

    \b
    crumb config rollback d84c --dry-run
    crumb config rollback d84c

    A config breadcrumb gets a new version. A config file is written by the server, if one owner alone uses it.
    Otherwise the command changes nothing and says what to do.
    """
    with open_client(url, token) as client:
        old = _show(client, digest)
        if dry_run:
            new = None if old["in_force"] else _find_in_force(client, old["consumer_id"])
            lines = [] if new is None else _unified(_show(client, new), old)
            _print_dry_run(old, lines, as_json=as_json)
            return OK
        done = send_json(client, "POST", "/contexts/config/rollback", {"digest": old["digest"]}).json()
    if not for_people(as_json):
        print_json(done)
    else:
        say(_done_text(done))
    return OK


def _entries(client: Client, consumer: str | None) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = client.request("GET", _PATH).json()["entries"]
    return [entry for entry in entries if consumer is None or entry["consumer_id"] == consumer]


def _show(client: Client, digest: str) -> dict[str, Any]:
    if not _is_digest(digest):
        raise UsageError(
            f"{visible(digest)!r} is not a digest: use {_MIN_PREFIX} to 64 hexadecimal digits. "
            f"To list them, run: {command()} config log"
        )
    from breadcrumbs.client.errors import InvalidInput, NotFound

    try:
        found: dict[str, Any] = client.request("GET", f"{_PATH}/{digest.lower()}").json()
    except (NotFound, InvalidInput) as error:
        raise UsageError(str(error)) from None
    return found


def _is_digest(text: str) -> bool:
    return _MIN_PREFIX <= len(text) <= 64 and all(digit in "0123456789abcdef" for digit in text.lower())


def _find_in_force(client: Client, consumer: str) -> str | None:
    return next((entry["digest"] for entry in _entries(client, consumer) if entry["in_force"]), None)


def _digest_in_force(client: Client, consumer: str) -> str:
    digest = _find_in_force(client, consumer)
    if digest is None:
        raise CommandError(
            f"the config in force of {visible(consumer)} was not used by a turn yet: give the digest of another one"
        )
    return digest


def _unified(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    from difflib import unified_diff

    before, after = (f"{config['digest'][:16]}  {config['consumer_id']}" for config in (old, new))
    return list(unified_diff(_lines(old), _lines(new), before, after, lineterm=""))


def _lines(shown: dict[str, Any]) -> list[str]:
    import orjson

    return (
        orjson.dumps(shown["config"], option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode().splitlines()
    )


def _print_diff(lines: list[str]) -> None:
    colours = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m"}
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for line in lines:
        shown = visible(line)
        colour = colours.get(line[:1]) if coloured else None
        sys.stdout.write(f"{shown}\n" if colour is None else f"{colour}{shown}\x1b[0m\n")


def _print_dry_run(old: dict[str, Any], lines: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": True, "digest": old["digest"], "in_force": old["in_force"], "diff": lines})
    elif old["in_force"]:
        say(f"{old['digest'][:16]} is in force already")
    else:
        say(f"would make {old['digest'][:16]} the config of {visible(old['consumer_id'])}:")
        _print_diff(lines)


def _done_text(done: dict[str, Any]) -> str:
    name = f"{done['digest'][:16]} (consumer {visible(done['consumer_id'])})"
    match done["origin"]:
        case "none":
            return f"{name} is in force already, nothing was changed"
        case "file":
            return f"{name} is in force: the server has written its config file"
        case _:
            return f"{name} is in force: version {done['version']} of breadcrumb {done['id']}"
