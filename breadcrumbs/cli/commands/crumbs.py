"""post, get, list, tail, history, delete, token: breadcrumbs, over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from breadcrumbs.cli.commands.options import (
    DEFAULT_URL,
    AnyTags,
    AsJson,
    Schema,
    Session,
    Since,
    Tags,
    Token,
    Url,
    api_key,
    open_api,
)

commands = typer.Typer()


@commands.command()
def post(
    text: Annotated[
        str | None, typer.Argument(help="The message; it goes to context.message. - reads standard input.")
    ] = None,
    session: Annotated[str | None, typer.Option("--session", "-s", help="The session it belongs to.")] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", help="What it is. [default for a text: user.message.v1]")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="[default: the beginning of the text]")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", "-t", help="A tag; may be repeated.")] = None,
    context: Annotated[
        str | None, typer.Option("--context", "-c", help="JSON object, @FILE, or - for standard input.")
    ] = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", help="How long it lives (90s, 1h, 7d), until when, or never.")
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option("--idempotency-key", help="The same key twice writes once. [default: a new one]"),
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Post a breadcrumb.

    \b
    crumb post "What is a blackboard?" --session demo
    echo "long text" | crumb post - --session demo --ttl 1h
    crumb post --schema tool.catalog.v1 --tag tools --context @catalog.json
    """
    from breadcrumbs.cli import crumbs

    with open_api(url, token) as api:
        return crumbs.post(
            api,
            text,
            session=session,
            schema=schema,
            title=title,
            tags=tag or [],
            context=context,
            ttl=ttl,
            idempotency_key=idempotency_key,
            as_json=as_json,
        )


@commands.command()
def get(
    id: Annotated[str, typer.Argument(help="Id of the breadcrumb.")],
    full: Annotated[
        bool, typer.Option("--full", help="Everything, not only what a model would see.")
    ] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Show one breadcrumb.

    \b
    crumb get 0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b
    crumb get 0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b --full | jq .context
    """
    from breadcrumbs.cli import crumbs

    with open_api(url, token) as api:
        return crumbs.get(api, id, full=full, as_json=as_json)


@commands.command("list")
def list_(
    session: Session = None,
    schema: Schema = None,
    tag: Tags = None,
    any_tag: AnyTags = None,
    since: Since = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many.")] = 50,
    everything: Annotated[bool, typer.Option("--all", help="All of them, however many pages.")] = False,
    sort: Annotated[
        str | None, typer.Option("--sort", help="created_at or updated_at, with a - for newest first.")
    ] = None,
    context: Annotated[bool, typer.Option("--context", help="With their contexts.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """List breadcrumbs, the newest first.

    \b
    crumb list --session demo
    crumb list --schema agent.response.v1 --since 1h
    crumb list --tag extension:chat --any-tag red --any-tag blue --all | jq -r '.[].id'

    Filters are AND; only the --any-tag among each other are OR.
    """
    from breadcrumbs.cli import crumbs

    with open_api(url, token) as api:
        return crumbs.list_(
            api,
            crumbs.filters(session=session, schema=schema, tags=tag or [], any_tags=any_tag or []),
            since=since,
            limit=limit,
            everything=everything,
            sort=sort,
            with_context=context,
            as_json=as_json,
        )


@commands.command()
def tail(
    session: Session = None,
    schema: Schema = None,
    tag: Tags = None,
    any_tag: AnyTags = None,
    since_id: Annotated[
        str | None, typer.Option("--since-id", help="Go on after this event (event_id in the JSON).")
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Follow what happens, live: + created, ~ updated, - deleted.

    \b
    crumb tail --session demo
    crumb tail --schema agent.response.v1 | jq -r .context.message

    When the connection breaks it comes back by itself, and nothing in between is missed.
    """
    from breadcrumbs.cli.client import open_client
    from breadcrumbs.cli.tail import tail

    with open_client(url, token=token, api_key=api_key()) as client:
        return tail(
            client,
            {"session": session, "schema_name": schema, "tags": tag or [], "any_tags": any_tag or []},
            since_id=since_id,
            as_json=as_json,
        )


@commands.command()
def history(
    id: Annotated[str, typer.Argument(help="Id of the breadcrumb.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Show all versions of a breadcrumb, and what changed from one to the next.

    \b
    crumb history 0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b
    """
    from breadcrumbs.cli import crumbs

    with open_api(url, token) as api:
        return crumbs.history(api, id, as_json=as_json)


@commands.command()
def delete(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of the breadcrumbs.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Delete breadcrumbs with all their versions.

    \b
    crumb delete 0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b
    crumb list --session old --all | jq -r '.[].id' | xargs crumb delete --yes
    """
    from breadcrumbs.cli import crumbs

    with open_api(url, token) as api:
        return crumbs.delete(api, ids, yes=yes, as_json=as_json)


@commands.command()
def token(
    owner: Annotated[str | None, typer.Option("--owner", help="For this tenant (a UUID).")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="For this agent (a UUID).")] = None,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="emitter, subscriber or curator; may be repeated.")
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", "-s", help="Good for this session only.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", help="Good for this user only.")] = None,
    ttl: Annotated[str | None, typer.Option("--ttl", help="How long it is good: 15m, 12h, 7d.")] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Get a token from a running server and print it, and nothing else.

    \b
    export CRUMB_TOKEN=$(crumb token)
    crumb token --role subscriber --session demo --ttl 1h

    Where the server has API keys, set CRUMB_API_KEY first.
    """
    from breadcrumbs.cli import crumbs

    with open_api(url, token) as api:
        return crumbs.token(
            api,
            owner=owner,
            agent=agent,
            roles=role or [],
            session=session,
            user=user,
            ttl=ttl,
            as_json=as_json,
        )
