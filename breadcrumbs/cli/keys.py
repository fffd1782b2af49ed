"""The command `crumb keys new`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID, uuid4

import typer

from breadcrumbs.cli.options import ConfigOption, JsonOption
from breadcrumbs.cli.output import (
    OK,
    CommandError,
    UsageError,
    command,
    console,
    for_people,
    print_json,
)

if TYPE_CHECKING:
    from breadcrumbs.runtime.settings.settings import Settings

commands = typer.Typer()
keys = typer.Typer(
    no_args_is_help=True,
    help="""Create API keys.

    \b
    crumb keys new                    print a new key and the entry for crumb.toml
    crumb keys new --add              also append the entry to crumb.toml

    The entry contains a hash of the key, so crumb.toml may be committed.
    """,
)
commands.add_typer(keys, name="keys")


@keys.callback()
def _group() -> None:
    """Keep `new` a subcommand. Typer would merge a group with a single command."""


@keys.command()
def new(
    agent_id: Annotated[
        str | None,
        typer.Option("--agent-id", help="Agent of the key (a UUID). Default: derived from the key."),
    ] = None,
    roles: Annotated[
        list[str] | None,
        typer.Option("--roles", help="emitter, subscriber, curator. Commas separate them. Default: all."),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(
            "--owner", help="Tenant of the key: a UUID, or new. Default: that of the keys in the settings."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="A label for you.")] = None,
    add: Annotated[bool, typer.Option("--add", help="Append the key to the settings file.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Create an API key, and show how to use it.

    \b
    crumb keys new
    crumb keys new --roles emitter,subscriber --name "chat client" --add
    crumb keys new --owner new

    The key is printed once and not stored anywhere. The settings contain only its SHA-256, which does not reveal it.
    The first key gets the data of development mode. Keys of different owners share nothing.
    """
    from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(config=config, host="127.0.0.1")
    key, entry = _new_entry(settings, agent_id=agent_id, roles=roles, owner=owner, name=name)
    path = _add_entry(config, entry) if add else None
    if for_people(as_json):
        _print_entry(key, entry, path)
    else:
        print_json({"key": key} | entry | ({"file": str(path)} if path else {}))
    return OK


def _new_entry(
    settings: Settings, *, agent_id: str | None, roles: list[str] | None, owner: str | None, name: str | None
) -> tuple[str, dict[str, Any]]:
    """Return a new key, and its entry in the setting `api_keys`."""
    import secrets
    from hashlib import sha256

    from breadcrumbs.runtime.settings.settings import ALL_ROLES

    key = f"crumb_{secrets.token_urlsafe(24)}"
    entry: dict[str, Any] = {
        "key_sha256": sha256(key.encode()).hexdigest(),
        "owner_id": str(_owner(settings, owner)),
    }
    wanted = [role.strip() for group in roles or () for role in group.split(",") if role.strip()]
    if unknown := sorted(set(wanted) - set(ALL_ROLES)):
        raise UsageError(f"unknown role {unknown[0]!r}: use {', '.join(ALL_ROLES)}")
    if wanted:
        entry["roles"] = list(dict.fromkeys(wanted))
    if agent_id is not None:
        entry["agent_id"] = str(_uuid(agent_id, "--agent-id"))
    if name is not None:
        if not name.isprintable():
            raise UsageError("--name must not contain control characters")
        entry["name"] = name
    return key, entry


def _owner(settings: Settings, given: str | None) -> UUID:
    """Return the given owner, or the owner of the existing keys, or the owner of development mode."""
    from breadcrumbs.runtime.settings.settings import DEVELOPER

    if given == "new":
        return uuid4()
    if given is not None:
        return _uuid(given, "--owner")
    owners = {key.owner_id for key in settings.api_keys}
    if len(owners) > 1:
        raise UsageError(
            "the keys in the settings have several owners: choose one with --owner, or --owner new"
        )
    return owners.pop() if owners else DEVELOPER


def _uuid(text: str, option: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise UsageError(f"{option} must be a UUID, such as {uuid4()}") from None


def _toml(entry: dict[str, Any]) -> str:
    # A JSON string or list of strings is also valid TOML.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in entry.items()]
    return "\n".join(["[[api_keys]]", *lines, ""])


def _add_entry(config: Path | None, entry: dict[str, Any]) -> Path:
    """Append the entry to the settings file. A new file can be read by its owner only: it can get secrets later."""
    import tomllib

    if "CRUMB_API_KEYS" in os.environ:
        raise UsageError(
            "CRUMB_API_KEYS is set and has priority over the file: add the key there, without --add"
        )
    path = config or Path(os.environ.get("CRUMB_CONFIG") or "crumb.toml")
    try:
        before = path.read_text("utf-8") if path.exists() else ""
        addition = ("\n" if before else "") + _toml(entry)
        tomllib.loads(before + addition)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write(("\n" if before and not before.endswith("\n") else "") + addition)
    except tomllib.TOMLDecodeError:
        raise CommandError(
            f"the key was not added: {path} has api_keys in another form. Write keys as [[api_keys]]"
        ) from None
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    return path


def _print_entry(key: str, entry: dict[str, Any], path: Path | None) -> None:
    out = console()
    if path is None:
        out.print("Add this to crumb.toml, or run the command with --add:\n")
        out.print(_toml(entry), markup=False, style="cyan")
        value = json.dumps([entry])
        out.print("or set the variable (a JSON list with all keys):\n")
        out.print(f"CRUMB_API_KEYS='{value}'\n", markup=False, style="cyan")
    else:
        out.print(f"added to {path}\n", markup=False)
    program = command()
    out.print("Restart the server. Every request then needs a key or a token. In another terminal:\n")
    for line in (
        f"export CRUMB_API_KEY={key}",
        f"{program} chat",
        f"{program} token --session demo --ttl 1h     a token for one session, for a browser",
        'curl http://127.0.0.1:8081/sessions -H "x-api-key: $CRUMB_API_KEY"',
    ):
        out.print(f"  {line}", markup=False, style="cyan")
    out.print("\nThe key is not shown again. The settings contain only its hash.")
