"""The address of the server that a command talks to, if the command line does not contain it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from breadcrumbs.cli.output import CommandError

_DEFAULT_HOST, _DEFAULT_PORT = "127.0.0.1", 8081
_ALL_INTERFACES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound


def server_url(given: str | None = None) -> str:
    """Return the address: the given one, then `CRUMB_URL`, then host and port of the settings.

    The settings come from `CRUMB_HOST` and `CRUMB_PORT`, then from the settings file. They are read here without the
    settings module, because that would load pydantic for each command.
    """
    if given is not None:
        return given
    if (named := os.environ.get("CRUMB_URL")) is not None:
        return named
    file = read_settings_file()
    host = os.environ.get("CRUMB_HOST") or file.get("host") or _DEFAULT_HOST
    port = os.environ.get("CRUMB_PORT") or file.get("port", _DEFAULT_PORT)
    return local_url(str(host), _read_port(port))


def local_url(host: str, port: int) -> str:
    """Return the URL for a host and port of the settings. The loopback address replaces one for all interfaces."""
    host = _ALL_INTERFACES.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def complete_url(context: typer.Context, param: typer.CallbackParam, url: str) -> str:
    """Replace the default of `--url`. This is the callback of the option."""
    source = context.get_parameter_source(param.name) if param.name else None
    is_default = source is None or source.name.startswith("DEFAULT")
    return server_url() if is_default and not context.resilient_parsing else url


def _read_port(value: object) -> int:
    try:
        port = int(str(value))
    except ValueError:
        port = -1
    if port == 0:
        raise CommandError(
            "the port in the settings is 0, any free port: use --url with the address of the server"
        )
    if not 0 < port < 65536:
        raise CommandError(f"port {str(value)!r} in the settings is invalid: use a number from 1 to 65535")
    return port


def read_settings_file() -> dict[str, Any]:
    """Read the settings file. Returns an empty dict if there is none."""
    named = os.environ.get("CRUMB_CONFIG")
    path = Path(named or "crumb.toml")
    if named is None and not path.exists():
        return {}
    import tomllib

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise CommandError(f"settings file {path} not found") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from None
