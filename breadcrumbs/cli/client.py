"""Connects the commands to a server through the public client.

The client is imported only when a command runs, so that `crumb --help` does not load httpx.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from breadcrumbs.cli.options import DEFAULT_URL
from breadcrumbs.cli.output import CommandError, command

if TYPE_CHECKING:
    from breadcrumbs.client.errors import ServerUnreachable
    from breadcrumbs.client.replies import Reply
    from breadcrumbs.client.sync import Client

_CREDENTIALS_HINT = "  set CRUMB_API_KEY or CRUMB_TOKEN, or use --token"


@contextmanager
def open_client(
    url: str, token: str | None = None, *, retries: int = 0, timeout: float = 30.0
) -> Iterator[Client]:
    """Open a client. Its errors are raised as `CommandError`.

    The API key comes only from the environment, because other users of the machine can read a command line.
    """
    from breadcrumbs.client.sync import Client

    if not url:  # the client would fall back to its default
        raise CommandError(f"{url!r} is not an address: use one such as {DEFAULT_URL}")
    try:
        key = os.environ.get("CRUMB_API_KEY")
        client = Client(url, token=token, api_key=key, retries=retries, timeout=timeout)
    except ValueError as error:
        raise CommandError(str(error)) from None
    with client, command_errors(client.url):
        yield client


def as_user(client: Client, user: str) -> str:
    """Get a token that is limited to a user. It works like the token of a user of your application.

    In development mode every program may get one. Otherwise this needs an API key.
    """
    return client.token(user_id=user).token


@contextmanager
def command_errors(url: str) -> Iterator[None]:
    """Turn errors of the client into `CommandError`s with advice."""
    from breadcrumbs.client.errors import ServerUnreachable, Unauthenticated

    try:
        yield
    except Unauthenticated as error:
        raise CommandError(f"{error}\n{_CREDENTIALS_HINT}") from None
    except ServerUnreachable as error:
        raise _unreachable(url, error) from error


def _unreachable(url: str, error: ServerUnreachable) -> CommandError:
    from breadcrumbs.client.replies import ConnectionLost

    lost = error.__cause__
    if isinstance(lost, ConnectionLost) and lost.refused:
        return CommandError(f"no server at {url}. Start one with: {command()} up")
    if isinstance(lost, ConnectionLost) and lost.timed_out:
        return CommandError(f"timeout: {url} did not answer. To find the reason, run: {command()} doctor")
    return CommandError(str(error))


def send_json(
    client: Client, method: str, path: str, document: Any, *, idempotency_key: str | None = None
) -> Reply:
    """Send a JSON document and return the reply."""
    check_encodable(document)
    headers = {} if idempotency_key is None else {"idempotency-key": idempotency_key}
    return client.request(method, path, json=document, headers=headers)


def check_encodable(document: Any) -> None:
    """Raise `UnicodeEncodeError` if text from the command line was not UTF-8."""
    import json

    json.dumps(document, ensure_ascii=False).encode()


def path_of(*names: str) -> str:
    """Build a path. Each name becomes one segment, with special characters escaped."""
    from breadcrumbs.client.requests import segment

    return "".join(f"/{segment(name)}" for name in names)


def next_page(reply: Reply) -> str | None:
    """Return the path of the next page, from the `Link` header, or None."""
    link = reply.headers.get("link", "")
    return link.partition("<")[2].partition(">")[0] if 'rel="next"' in link else None
