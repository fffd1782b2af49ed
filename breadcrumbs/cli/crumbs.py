"""post, get, list, history, delete, token: one request, one answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from difflib import unified_diff
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import orjson

from breadcrumbs.cli.client import Api
from breadcrumbs.cli.output import (
    OK,
    PROBLEM,
    CommandError,
    JsonArray,
    UsageError,
    agreed,
    console,
    fail,
    for_people,
    one_line,
    print_json,
    say,
    shown_time,
    visible,
)
from breadcrumbs.client.requests import segment

MESSAGE_SCHEMA = "user.message.v1"
_PAGE = 1_000
_UNCHANGING = {
    "id",
    "owner_id",
    "version",
    "created_at",
    "updated_at",
    "created_by",
    "updated_by",
    "checksum",
    "size_bytes",
}


def post(
    api: Api,
    text: str | None,
    *,
    session: str | None,
    schema: str | None,
    title: str | None,
    tags: list[str],
    context: str | None,
    ttl: str | None,
    idempotency_key: str | None,
    as_json: bool,
) -> int:
    document = new_breadcrumb(
        text, session=session, schema=schema, title=title, tags=tags, context=context, ttl=ttl
    )
    response = api.create(document, idempotency_key or str(uuid4()))
    written = response.json()
    if not for_people(as_json):
        print_json(written)
        return OK
    replayed = response.headers.get("idempotency-replayed") == "true"
    where = f" in session [bold]{_escaped(session)}[/]" if session else ""
    done = "[yellow]was there already:[/]" if replayed else "[green]posted[/]"
    console().print(f"{done} {written['id']} (version {written['version']}){where}")
    return OK


def new_breadcrumb(
    text: str | None,
    *,
    session: str | None = None,
    schema: str | None = None,
    title: str | None = None,
    tags: list[str],
    context: str | None = None,
    ttl: str | None = None,
) -> dict[str, Any]:
    """What `crumb post` sends. Plain text is a user's message, unless a schema says what it is."""
    if text is None and context is None:
        raise UsageError(
            'there is nothing to post: give a text ("Hello"), - to read it from standard input, or --context'
        )
    if text == "-" and context == "-":
        raise UsageError("only one of the text and the context can come from standard input")
    content = {} if context is None else read_context(context)
    if text == "-":
        text = sys.stdin.read().rstrip("\n")
    if text is not None:
        if "message" in content:
            raise UsageError("the text goes to context.message, which --context has too: give one of them")
        content = {"message": text, **content}
    tags = list(tags)
    if schema is None and text is not None:
        schema = MESSAGE_SCHEMA
        if "user:message" not in tags:
            tags.append("user:message")
    if session is not None:
        tags.append(f"session:{session}")
    document: dict[str, Any] = {
        "title": title if title is not None else _title_of(text),
        "tags": tags,
        "context": content,
    }
    if schema is not None:
        document["schema_name"] = schema
    return document | ({} if ttl is None else read_ttl(ttl))


def read_context(given: str) -> dict[str, Any]:
    """JSON as it stands, from a file (`@name`) or from standard input (`-`)."""
    if given == "-":
        raw, where = sys.stdin.buffer.read(), "standard input"
    elif given.startswith("@"):
        where = given[1:]
        try:
            raw = Path(where).read_bytes()
        except OSError as error:
            raise CommandError(f"cannot read {where}: {error.strerror}") from None
    else:
        raw, where = given.encode("utf-8", "surrogateescape"), "--context"
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"the context from {where} is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"the context from {where} must be a JSON object: {{…}}")
    return document


def read_ttl(text: str) -> dict[str, Any]:
    if text == "never":
        return {"ttl_type": "never"}
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return {"ttl_type": "duration", "ttl_config": {"duration": text}}
    return {"ttl_type": "datetime", "ttl": text}


def _title_of(text: str | None) -> str:
    return one_line(text, 80) if text else ""


def get(api: Api, id: str, *, full: bool, as_json: bool) -> int:
    document = api.get(f"/breadcrumbs/{segment(id)}{'/full' if full else ''}").json()
    if not for_people(as_json):
        print_json(document)
        return OK
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    out = console()
    out.print(f"[bold]{_escaped(document.get('title') or '(no title)')}[/]")
    for name, value in document.items():
        if name in ("title", "context"):
            continue
        if isinstance(value, dict):
            value = orjson.dumps(value).decode()
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        out.print(f"  [dim]{_escaped(name):17}[/] {_escaped(str(shown))}")
    context = orjson.dumps(document.get("context", {}), option=orjson.OPT_INDENT_2).decode()
    out.print(JSONHighlighter()(Text(visible(context))))
    return OK


def filters(
    *, session: str | None, schema: str | None, tags: list[str], any_tags: list[str]
) -> list[tuple[str, str]]:
    """The filters that listing and tailing share. As JSON, tags mean themselves whatever they look like."""
    found = [
        (name, json.dumps(given, ensure_ascii=False))
        for name, given in (("all_tags", tags), ("any_tags", any_tags))
        if given
    ]
    if session is not None:
        found.append(("session_id", session))
    if schema is not None:
        found.append(("schema_name", schema))
    return found


def list_(
    api: Api,
    params: list[tuple[str, str]],
    *,
    since: str | None,
    limit: int,
    everything: bool,
    sort: str | None,
    with_context: bool,
    as_json: bool,
) -> int:
    if since is not None:
        params = [*params, ("updated_since", read_since(since))]
    if sort is not None:
        params = [*params, ("sort", sort)]
    if with_context:
        params = [*params, ("include_context", "true")]
    hints: list[str] = []
    found = _pages(api, params, None if everything else limit, hints)
    if not for_people(as_json):
        array = JsonArray()
        for item in found:
            array.add(item)
        array.end()
        _say_all(hints)
        return OK
    rows = [_cells(item, with_context) for item in found]
    if not rows:
        say("nothing found")
        return OK
    _print_columns(rows)
    _say_all(hints)
    return OK


def _say_all(hints: list[str]) -> None:
    for hint in hints:
        say(hint)


def _cells(item: dict[str, Any], with_context: bool) -> list[str]:
    gist = item["title"]
    if with_context:
        gist = f"{gist}  {orjson.dumps(item['context']).decode()}"
    cells = (
        shown_time(item["created_at"]),
        item["id"],
        f"v{item['version']}",
        item.get("schema_name", "-"),
        session_in(item["tags"]) or "-",
        gist,
    )
    return [one_line(cell) for cell in cells]


def _print_columns(rows: list[list[str]]) -> None:
    """Ids are there to be copied: they are never cut, and on a narrow terminal the gist is."""
    from rich.text import Text

    out = console()
    widths = [max(len(row[place]) for row in rows) for place in range(5)]
    left = max(20, out.width - sum(widths) - 2 * len(widths))
    for row in rows:
        line = Text()
        for cell, width, style in zip(row, widths, ("dim", "cyan", "dim", "magenta", "green"), strict=False):
            line.append(cell.ljust(width) + "  ", style=style)
        line.append(one_line(row[5], left))
        out.print(line)


def _pages(
    api: Api, params: list[tuple[str, str]], most: int | None, hints: list[str]
) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    left = most
    while True:
        size = _PAGE if left is None else min(_PAGE, left)
        page = [*params, ("limit", str(size))]
        if cursor is not None:
            page.append(("cursor", cursor))
        response = api.get("/breadcrumbs", page)
        items = response.json()
        yield from items
        following = response.links.get("next", {}).get("url")
        if following is None:
            return
        cursor = parse_qs(urlsplit(following).query)["cursor"][0]
        if left is not None:
            left -= len(items)
            if left <= 0:
                hints.append(f"there is more than these {most}: --all lists everything, --limit more")
                return


def read_since(text: str) -> str:
    """A time, or how long ago."""
    from breadcrumbs.runtime.breadcrumb.ttl import parse_duration

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            moment = datetime.now(UTC) - parse_duration(text)
        except (ValueError, OverflowError):
            raise UsageError(
                f"{text!r} is neither a time (2026-11-16T09:00:00Z) nor how long ago (10m, 2h, 7d)"
            ) from None
    if moment.tzinfo is None:
        moment = moment.astimezone()  # what somebody types without a zone is their own time
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def session_in(tags: list[str]) -> str | None:
    return next((tag.removeprefix("session:") for tag in tags if tag.startswith("session:")), None)


def history(api: Api, id: str, *, as_json: bool) -> int:
    path: str | None = f"/breadcrumbs/{segment(id)}/history"
    versions: list[dict[str, Any]] = []
    while path is not None:
        response = api.get(path)
        versions += response.json()
        path = response.links.get("next", {}).get("url")
    if not for_people(as_json):
        print_json(versions)
        return OK
    out = console()
    ordered = sorted(versions, key=lambda version: int(version["version"]), reverse=True)
    for number, version in enumerate(ordered):
        by = f" by {version['updated_by']}" if version.get("updated_by") else ""
        out.print(f"[bold]version {version['version']}[/]  {shown_time(version['updated_at'])}{_escaped(by)}")
        before = ordered[number + 1] if number + 1 < len(ordered) else None
        for line in difference(before, version):
            out.print(f"  {_escaped(visible(line))}", style={"+": "green", "-": "red"}.get(line[0], "dim"))
    return OK


def difference(before: dict[str, Any] | None, after: dict[str, Any]) -> list[str]:
    """What changed from one version to the next, as lines that begin with + or -."""
    if before is None:
        return []
    changed = list(unified_diff(_content_lines(before), _content_lines(after), n=0, lineterm=""))
    return [line for line in changed[2:] if not line.startswith("@@")]


def _content_lines(version: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in version.items():
        if name in _UNCHANGING:
            continue
        if isinstance(value, dict):
            lines += [f"{name}.{key}: {orjson.dumps(part).decode()}" for key, part in value.items()]
        else:
            lines.append(f"{name}: {orjson.dumps(value).decode()}")
    return lines


def delete(api: Api, ids: list[str], *, yes: bool, as_json: bool) -> int:
    what = ids[0] if len(ids) == 1 else f"these {len(ids)} breadcrumbs"
    if not yes and not agreed(f"Delete {what} with all versions?"):
        return PROBLEM
    results = []
    for id in ids:
        try:
            api.request("DELETE", f"/breadcrumbs/{segment(id)}")
        except CommandError as error:
            fail(f"{id}: {error}")
            results.append({"id": id, "deleted": False, "error": str(error)})
        else:
            results.append({"id": id, "deleted": True})
    if for_people(as_json):
        for result in results:
            if result["deleted"]:
                console().print(f"[green]deleted[/] {result['id']}")
    else:
        print_json(results)
    return OK if all(result["deleted"] for result in results) else PROBLEM


def token(
    api: Api,
    *,
    owner: str | None,
    agent: str | None,
    roles: list[str],
    session: str | None,
    user: str | None,
    ttl: str | None,
    as_json: bool,
) -> int:
    wanted: dict[str, Any] = {}
    for name, value in (("owner_id", owner), ("agent_id", agent)):
        if value is not None:
            wanted[name] = _checked_uuid(value, name)
    if roles:
        wanted["roles"] = roles
    if session is not None:
        wanted["session_id"] = session
    if user is not None:
        wanted["user_id"] = user
    if ttl is not None:
        wanted["ttl_sec"] = _seconds(ttl)
    answer = api.request("POST", "/auth/token", json=wanted).json()
    if as_json:
        print_json(answer)
        return OK
    # Alone on standard output, so that CRUMB_TOKEN=$(crumb token) works.
    sys.stdout.write(answer["token"] + "\n")
    if sys.stderr.isatty():
        expires = datetime.fromtimestamp(answer["exp"], UTC).isoformat()
        granted = ", ".join(answer["roles"])
        say(f"owner {answer['owner_id']}, roles {granted}, good until {shown_time(expires)}")
    return OK


def _checked_uuid(text: str, name: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise UsageError(f"{name} must be a UUID, such as {uuid4()}") from None


def _seconds(text: str) -> int:
    from breadcrumbs.runtime.breadcrumb.ttl import parse_duration

    try:
        return max(1, int(parse_duration(text).total_seconds()))
    except ValueError as error:
        raise UsageError(f"--ttl {text}: {error}") from None


def _escaped(text: str | None) -> str:
    from rich.markup import escape

    return escape(visible(text or ""))
