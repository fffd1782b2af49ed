"""The commands: their options and their help. What they do is in the modules that they import when called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from breadcrumbs.cli.output import INTERRUPTED, PROBLEM, USAGE, UsageError, fail, leave_closed_pipe
from breadcrumbs.runtime.errors import BreadcrumbsError


class Commands(TyperGroup):
    """Runs a command, and turns what was expected to go wrong into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            code = super().invoke(ctx)
        except UsageError as error:
            fail(error)
            code = USAGE
        except UnicodeError as error:
            fail(f"this is not valid UTF-8: {error}")
            code = USAGE
        except BreadcrumbsError as error:
            fail(error)
            code = PROBLEM
        except ExceptionGroup as group:
            # Tasks that run side by side fail as a group, also where only one of them has.
            expected, others = group.split(BreadcrumbsError)
            if expected is None or others is not None:
                raise
            fail(_first(expected))
            code = PROBLEM
        except BrokenPipeError:
            leave_closed_pipe()
        except KeyboardInterrupt:
            code = INTERRUPTED
        raise typer.Exit(code or 0)


def _first(group: ExceptionGroup[BreadcrumbsError]) -> BreadcrumbsError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    # Plain help: drawing it with rich costs 400 ms. Tracebacks are for bugs, and then Python's own.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Breadcrumbs: post, read and follow small tagged JSON packets.

    \b
    crumb up                                 start everything on this machine
    crumb post "Hello" --session demo        (in another terminal)
    crumb tail --session demo                follow what happens, live

    On a terminal you get tables, in a pipe JSON. Settings come from flags, from CRUMB_… variables and from
    crumb.toml, in this order. crumb COMMAND --help has examples.
    """,
)

Url = Annotated[str, typer.Option("--url", envvar="CRUMB_URL", help="The server to talk to.")]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="CRUMB_TOKEN", help="A token; or set CRUMB_API_KEY.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON also on a terminal.")]
Session = Annotated[str | None, typer.Option("--session", "-s", help="Only this session.")]
Schema = Annotated[str | None, typer.Option("--schema", help="Only this schema, such as user.message.v1.")]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", "-t", help="Must have this tag; all of them if repeated.")
]
AnyTags = Annotated[list[str] | None, typer.Option("--any-tag", help="Must have at least one of these tags.")]
ContextConfig = Annotated[
    Path | None,
    typer.Option("--context-config", help="The context builder's config (JSON). [env: CRUMB_CONTEXT_CONFIG]"),
]
Agents = Annotated[
    Path | None, typer.Option("--agents", help="Folder with agent definitions (JSON). [env: CRUMB_AGENTS]")
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="Model of agents that name none: offline, openai:…, ollama:… [env: CRUMB_MODEL]"
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="Settings file. [env: CRUMB_CONFIG; default: crumb.toml if it is there]"),
]
Redis = Annotated[
    str | None,
    typer.Option(
        "--redis",
        help="A server of your own: redis:, rediss: (TLS), redis+cluster: or unix://… [env: CRUMB_REDIS]",
    ),
]
Data = Annotated[
    Path | None, typer.Option("--data", help="Where the embedded server keeps its data. [env: CRUMB_DATA]")
]
Host = Annotated[
    str | None, typer.Option("--host", help="Address to listen on. [env: CRUMB_HOST; default: 127.0.0.1]")
]
Port = Annotated[
    int | None,
    typer.Option("--port", help="Port to listen on, 0 = any free one. [env: CRUMB_PORT; default: 8081]"),
]
Lanes = Annotated[
    int | None,
    typer.Option("--lanes", help="Number of lanes of a new store. [env: CRUMB_LANES; default: 16]"),
]
Load = Annotated[
    list[str] | None,
    typer.Option("--load", help="A Python module with agents and tools of your own; only these are run."),
]
LogLevel = Annotated[
    str | None, typer.Option("--log-level", help="debug, info, warning or error. [env: CRUMB_LOG_LEVEL]")
]
LogFormat = Annotated[
    str | None, typer.Option("--log-format", help="auto, text or json. [env: CRUMB_LOG_FORMAT]")
]
OwnerOf = Annotated[str | None, typer.Option("--owner", help="Only this owner (a UUID).")]

DEFAULT_URL = "http://127.0.0.1:8081"


def _api(url: str, token: str | None) -> Any:
    from breadcrumbs.cli.client import Api

    # The key comes from the environment alone: what is on a command line, every user of the machine can see.
    return Api(url, token=token, api_key=os.environ.get("CRUMB_API_KEY"))


@app.command()
def up(
    host: Host = None,
    port: Port = None,
    data: Data = None,
    redis: Redis = None,
    config: Config = None,
    lanes: Lanes = None,
    context_config: ContextConfig = None,
    agents: Agents = None,
    model: Model = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Start everything in one process, with a server of its own.

    \b
    crumb up                                     on 127.0.0.1:8081, data in your data directory
    crumb up --port 0 --data ./try               any free port, data in ./try
    crumb up --redis redis://:secret@db:6379/0   on a Redis server of yours

    Ctrl-C stops it; started again, the data is there. Only this machine can reach it, unless API keys are
    set (config/crumb.example.toml shows how).
    """
    from breadcrumbs.cli.serve import up
    from breadcrumbs.runtime.settings import load_settings

    return up(
        load_settings(
            config=config,
            host=host,
            port=port,
            data=data,
            redis=redis,
            lanes=lanes,
            context_config=context_config,
            agents=agents,
            model=model,
            log_level=log_level,
            log_format=log_format,
        )
    )


@app.command()
def serve(
    redis: Redis = None,
    host: Host = None,
    port: Port = None,
    config: Config = None,
    lanes: Lanes = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Start the API alone, on a Redis server of your own. Any number of these can share one.

    \b
    crumb serve --redis redis://db:6379/0 --port 8081
    crumb serve --redis redis+cluster://node1:7000
    """
    from breadcrumbs.cli.serve import serve
    from breadcrumbs.runtime.settings import load_settings

    return serve(
        load_settings(
            config=config,
            host=host,
            port=port,
            redis=redis,
            lanes=lanes,
            log_level=log_level,
            log_format=log_format,
        )
    )


@app.command("build-contexts")
def build_contexts(
    redis: Redis = None,
    data: Data = None,
    context_config: ContextConfig = None,
    config: Config = None,
    lanes: Lanes = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Run a context builder. Start as many as you like, stop or kill any of them at any time.

    \b
    crumb build-contexts --redis redis://db:6379/0 --context-config context.json

    The config can be edited while it runs; an edit that does not work is refused with its line.
    """
    from breadcrumbs.cli.workers import build_contexts
    from breadcrumbs.runtime.settings import load_settings

    return build_contexts(
        load_settings(
            config=config,
            redis=redis,
            data=data,
            context_config=context_config,
            lanes=lanes,
            log_level=log_level,
            log_format=log_format,
        )
    )


@app.command("run-agents")
def run_agents(
    redis: Redis = None,
    data: Data = None,
    agents: Agents = None,
    load: Load = None,
    model: Model = None,
    context_config: ContextConfig = None,
    config: Config = None,
    lanes: Lanes = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Run an agent runner. Start as many as you like, stop or kill any of them at any time.

    \b
    crumb run-agents --redis redis://db:6379/0
    crumb run-agents --redis redis://db:6379/0 --agents ./agents --model ollama:llama3
    crumb run-agents --load my_agents

    Ctrl-C or SIGTERM lets it finish what it has begun; others take over the rest.
    """
    from breadcrumbs.cli.workers import run_agents
    from breadcrumbs.runtime.settings import load_settings

    return run_agents(
        load_settings(
            config=config,
            redis=redis,
            data=data,
            load=load or None,
            agents=agents,
            model=model,
            context_config=context_config,
            lanes=lanes,
            log_level=log_level,
            log_format=log_format,
        )
    )


@app.command()
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

    with _api(url, token) as api:
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


@app.command()
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

    with _api(url, token) as api:
        return crumbs.get(api, id, full=full, as_json=as_json)


@app.command("list")
def list_(
    session: Session = None,
    schema: Schema = None,
    tag: Tags = None,
    any_tag: AnyTags = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Written since then: a time, or how long ago (10m, 2h, 7d).")
    ] = None,
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

    with _api(url, token) as api:
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


@app.command()
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

    with open_client(url, token=token, api_key=os.environ.get("CRUMB_API_KEY")) as client:
        return tail(
            client,
            {"session": session, "schema_name": schema, "tags": tag or [], "any_tags": any_tag or []},
            since_id=since_id,
            as_json=as_json,
        )


@app.command()
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

    with _api(url, token) as api:
        return crumbs.history(api, id, as_json=as_json)


@app.command()
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

    with _api(url, token) as api:
        return crumbs.delete(api, ids, yes=yes, as_json=as_json)


@app.command()
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

    with _api(url, token) as api:
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


@app.command()
def export(
    file: Annotated[str | None, typer.Argument(help="Where to; nothing or - is standard output.")] = None,
    session: Session = None,
    schema: Schema = None,
    tag: Tags = None,
    any_tag: AnyTags = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Written since then: a time, or how long ago (10m, 2h, 7d).")
    ] = None,
    with_history: Annotated[
        bool, typer.Option("--history/--no-history", help="With the older versions.")
    ] = True,
    owner: OwnerOf = None,
    data: Data = None,
    redis: Redis = None,
    config: Config = None,
) -> int:
    """Write breadcrumbs to a file: one line of JSON each, with their ids, times, versions and history.

    \b
    crumb export backup.jsonl
    crumb export --session demo --no-history | jq .breadcrumb.title

    Works on the store itself, whether crumb up is running or not.
    """
    from breadcrumbs.cli import moves
    from breadcrumbs.cli.crumbs import read_since
    from breadcrumbs.runtime.breadcrumb import parse_time
    from breadcrumbs.runtime.settings import load_settings

    return moves.export(
        load_settings(config=config, data=data, redis=redis),
        file,
        moves.export_query(
            session=session,
            schema=schema,
            tags=tag or [],
            any_tags=any_tag or [],
            since=None if since is None else parse_time(read_since(since), where="--since"),
        ),
        owner=moves.read_owner(owner),
        history=with_history,
    )


@app.command("import")
def import_(
    file: Annotated[str, typer.Argument(help="A file that crumb export has written; - is standard input.")],
    owner: Annotated[
        str | None,
        typer.Option("--owner", help="Give everything to this owner (a UUID). [default: as in the file]"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing.")] = False,
    data: Data = None,
    redis: Redis = None,
    config: Config = None,
    as_json: AsJson = False,
) -> int:
    """Read breadcrumbs from a file of crumb export. Safe to repeat: what is there stays as it is.

    \b
    crumb import backup.jsonl --dry-run
    crumb import backup.jsonl --redis redis://db:6379/0

    Bad lines are named and left out, the others are imported, and the exit code is 1.
    """
    from breadcrumbs.cli import moves
    from breadcrumbs.runtime.settings import load_settings

    settings = load_settings(config=config, data=data, redis=redis)
    return moves.import_(settings, file, owner=moves.read_owner(owner), dry_run=dry_run, as_json=as_json)


@app.command()
def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend what can be mended: indexes, expired leftovers.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option("--url", envvar="CRUMB_URL", help="The API to look for. [default: as in the settings]"),
    ] = None,
    data: Data = None,
    redis: Redis = None,
    config: Config = None,
    as_json: AsJson = False,
) -> int:
    """Look at everything, say what is wrong and how to mend it. Exit code 1 if something is.

    \b
    crumb doctor
    crumb doctor --fix
    crumb doctor --redis redis://db:6379/0 --json | jq '.findings[] | select(.status == "wrong")'
    """
    from breadcrumbs.cli.checkup import doctor

    flags = {"config": config, "data": data, "redis": redis}
    return doctor(flags, api=None if url is None else _api(url, None), fix=fix, as_json=as_json)


@app.command()
def version(as_json: AsJson = False) -> int:
    """Print the version.

    \b
    crumb version
    crumb version --json
    """
    import platform

    from breadcrumbs import __version__
    from breadcrumbs.cli.output import for_people, print_json

    if for_people(as_json):
        typer.echo(f"breadcrumbs {__version__} (Python {platform.python_version()})")
    else:
        print_json({"version": __version__, "python": platform.python_version()})
    return 0


contexts = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""What a model gets to see of a session, and why.

    \b
    crumb context check context.json                             is this config fine?
    crumb context explain demo                                   what was shown for the last message, and why
    crumb context preview --session demo --config context.json   what would be shown with this config
    crumb context diff demo@3 demo@4                             what has changed from turn to turn

    All of them work on the store itself, whether crumb up is running or not, and write nothing.
    """,
)
app.add_typer(contexts, name="context", short_help="What a model gets to see of a session, and why.")

audits = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Prove on the store itself that what must hold does hold.

    \b
    crumb audit isolation             no session has anything of another one in it
    """,
)
app.add_typer(audits, name="audit", short_help="Prove that sessions are kept apart.")

Consumer = Annotated[
    str | None, typer.Option("--consumer", help="Whose context, where a session has several.")
]
OwnedBy = Annotated[
    str | None,
    typer.Option("--owner", help="Whose session (a UUID). [default: the only one of the settings]"),
]


@contexts.command("check")
def context_check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Context configs (JSON).")],
    as_json: AsJson = False,
) -> int:
    """Check context configs. Exit code 1 if one cannot be used, with each fault at its line and column.

    \b
    crumb context check context.json
    """
    from breadcrumbs.cli.contexts import check

    return check(files, as_json=as_json)


@contexts.command("explain")
def context_explain(
    of: Annotated[
        str, typer.Argument(metavar="SESSION_OR_CONTEXT_ID", help="A session, or the id of a context.")
    ],
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="An older version. [default: the newest]")
    ] = None,
    consumer: Consumer = None,
    parts: Annotated[
        bool, typer.Option("--parts", help="Also what the model was shown, rendered again.")
    ] = False,
    owner: OwnedBy = None,
    data: Data = None,
    redis: Redis = None,
    config: Config = None,
    as_json: AsJson = False,
) -> int:
    """Show what is in a context and what was left out, which source found it, its tokens and the budget.

    \b
    crumb context explain demo
    crumb context explain demo --version 3 --parts
    crumb context explain demo --json | jq '.left_out[] | select(.reason == "over budget")'
    """
    from breadcrumbs.cli.contexts import show
    from breadcrumbs.cli.moves import read_owner
    from breadcrumbs.runtime.settings import load_settings

    return show(
        load_settings(config=config, data=data, redis=redis),
        of,
        version=version,
        consumer=consumer,
        owner=read_owner(owner),
        with_parts=parts,
        as_json=as_json,
    )


@contexts.command("preview")
def context_preview(
    session: Annotated[str, typer.Option("--session", "-s", help="The session to look at.")],
    context_config: Annotated[Path, typer.Option("--config", help="The context config to try (JSON).")],
    consumer: Annotated[
        str | None, typer.Option("--consumer", help="Which config, where the file has several.")
    ] = None,
    trigger: Annotated[
        str | None,
        typer.Option("--trigger", help="For this message (an id). [default: the newest it reacts to]"),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--diff", help="Also the difference to what the model was shown.")
    ] = False,
    owner: OwnedBy = None,
    data: Data = None,
    redis: Redis = None,
    settings: Annotated[
        Path | None, typer.Option("--settings", help="Settings file. [env: CRUMB_CONFIG]")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show what a model would see with another config. Nothing is written.

    \b
    crumb context preview --session demo --config context.json
    crumb context preview --session demo --config context.json --diff
    """
    from breadcrumbs.cli.contexts import show_preview
    from breadcrumbs.cli.moves import read_owner
    from breadcrumbs.runtime.ids import parse_id
    from breadcrumbs.runtime.settings import load_settings

    return show_preview(
        load_settings(config=settings, data=data, redis=redis),
        session=session,
        file=context_config,
        consumer=consumer,
        trigger=None if trigger is None else parse_id(trigger, what="--trigger"),
        with_diff=compare,
        owner=read_owner(owner),
        as_json=as_json,
    )


@contexts.command("diff")
def context_diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A session or a context, or one @VERSION of it.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same.")],
    consumer: Consumer = None,
    owner: OwnedBy = None,
    data: Data = None,
    redis: Redis = None,
    config: Config = None,
    as_json: AsJson = False,
) -> int:
    """Show what has changed from one context to another: + in, - out, ~ moved or changed.

    \b
    crumb context diff demo@3 demo@4
    crumb context diff demo other-session
    """
    from breadcrumbs.cli.contexts import show_diff
    from breadcrumbs.cli.moves import read_owner
    from breadcrumbs.runtime.settings import load_settings

    return show_diff(
        load_settings(config=config, data=data, redis=redis),
        old,
        new,
        consumer=consumer,
        owner=read_owner(owner),
        as_json=as_json,
    )


@audits.command("isolation")
def audit_isolation(
    history: Annotated[
        bool, typer.Option("--history", help="Also the older versions of every context.")
    ] = False,
    owner: OwnerOf = None,
    data: Data = None,
    redis: Redis = None,
    config: Config = None,
    as_json: AsJson = False,
) -> int:
    """Look at every breadcrumb and every context: nothing of one session may be in another. Exit code 1 if so.

    \b
    crumb audit isolation
    crumb audit isolation --history --json | jq .findings
    """
    from breadcrumbs.cli.contexts import audit
    from breadcrumbs.cli.moves import read_owner
    from breadcrumbs.runtime.settings import load_settings

    settings = load_settings(config=config, data=data, redis=redis)
    return audit(settings, owner=read_owner(owner), history=history, as_json=as_json)


@app.command()
def chat(
    session: Annotated[
        str | None, typer.Option("--session", "-s", help="The session to go on with. [default: a new one]")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds to wait for an answer; 0 = for ever.")
    ] = 300.0,
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> int:
    """Chat in the terminal: answers appear while they are made. /help inside lists what it can do.

    \b
    crumb chat
    crumb chat --session demo
    echo "What did I say?" | crumb chat --session demo

    Ctrl-C stops an answer, once more leaves. In a pipe each line is a message, and only the answers are printed.
    """
    from breadcrumbs.cli.chat import chat

    return chat(
        url,
        token=token,
        api_key=os.environ.get("CRUMB_API_KEY"),
        session=session,
        timeout=timeout or None,
    )


sessions = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Conversations: list, show, begin, rename, fork, retry and delete them.

    \b
    crumb sessions list
    crumb sessions messages demo
    crumb sessions delete demo
    """,
)
app.add_typer(sessions, name="sessions")
SessionName = Annotated[str, typer.Argument(metavar="SESSION", help="The session.")]
MessageId = Annotated[str | None, typer.Option("--message", help="The id of a message.", show_default=False)]


@sessions.command("list")
def list_sessions(
    user: Annotated[str | None, typer.Option("--user", help="Only those of this user.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """List sessions, the last active one first.

    \b
    crumb sessions list
    crumb sessions list --user ann --all --json | jq -r .[].id
    """
    from breadcrumbs.cli import sessions

    with _api(url, token) as api:
        return sessions.list_(api, user=user, limit=limit, everything=everything, as_json=as_json)


@sessions.command("show")
def show_session(
    session: SessionName, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False
) -> int:
    """Show one: its version, what is in it, its state.

    \b
    crumb sessions show demo
    crumb sessions show demo --json | jq .state
    """
    from breadcrumbs.cli import sessions

    with _api(url, token) as api:
        return sessions.show(api, session, as_json=as_json)


@sessions.command("new")
def new_session(
    session: Annotated[
        str | None,
        typer.Argument(metavar="[SESSION]", help="Its id. [default: a new one]", show_default=False),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="What it is about.")] = None,
    user: Annotated[str | None, typer.Option("--user", help="Whose it is.")] = None,
    state: Annotated[str | None, typer.Option("--state", help="What it begins with (JSON).")] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Begin a session with a title, a user, a state. The first message begins one, too.

    \b
    crumb sessions new demo --title "Holidays" --state '{"language": "en"}'
    """
    from breadcrumbs.cli import sessions

    with _api(url, token) as api:
        return sessions.new(api, session, title=title, user=user, state=state, as_json=as_json)


@sessions.command("rename")
def rename_session(
    session: SessionName,
    title: Annotated[str, typer.Argument(help="The new title; an empty one takes it away.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Give a session another title.

    \b
    crumb sessions rename demo "Summer holidays"
    """
    from breadcrumbs.cli import sessions

    with _api(url, token) as api:
        return sessions.rename(api, session, title, as_json=as_json)


@sessions.command("pause")
def pause_session(
    session: SessionName, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False
) -> int:
    """Let agents no longer answer in a session. What is said meanwhile waits.

    \b
    crumb sessions pause demo
    """
    from breadcrumbs.cli import sessions

    with _api(url, token) as api:
        return sessions.set_active(api, session, False, as_json=as_json)


@sessions.command("resume")
def resume_session(
    session: SessionName, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False
) -> int:
    """Let agents answer in a session again, first what waited.

    \b
    crumb sessions resume demo
    """
    from breadcrumbs.cli import sessions

    with _api(url, token) as api:
        return sessions.set_active(api, session, True, as_json=as_json)


@sessions.command("delete")
def delete_sessions(
    names: Annotated[list[str], typer.Argument(metavar="SESSION...", help="The sessions.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Delete sessions with everything in them. What is being answered there stops.

    \b
    crumb sessions delete demo
    """
    from breadcrumbs.cli import sessions

    with _api(url, token) as api:
        return sessions.delete(api, names, yes=yes, as_json=as_json)


@sessions.command("fork")
def fork_session(
    session: SessionName,
    message: MessageId = None,
    name: Annotated[
        str | None,
        typer.Option("--id", help="The id of the new session. [default: a new one]", show_default=False),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Its title. [default: the same]")] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Begin a session with what was said in another, up to --message or to its end.

    \b
    crumb sessions fork demo --id demo-2
    crumb sessions fork demo --message 0197a3c4-5e6f-7007-8a9b-0c1d2e3f4a5b
    """
    from breadcrumbs.cli import sessions

    with _api(url, token) as api:
        return sessions.fork(api, session, message=message, name=name, title=title, as_json=as_json)


@sessions.command("retry")
def retry_turn(
    session: SessionName,
    message: MessageId = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Run a turn again that failed: the newest one, or that of --message. The message is not posted again.

    \b
    crumb sessions retry demo
    """
    from breadcrumbs.cli import sessions

    with _api(url, token) as api:
        return sessions.retry(api, session, message=message, as_json=as_json)


@sessions.command("messages")
def session_messages(
    session: SessionName,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many of the newest.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> int:
    """Show what was said, the oldest first: messages, answers, errors, the use of tools.

    \b
    crumb sessions messages demo
    crumb sessions messages demo --all --json | jq -r '.[] | .role + ": " + .text'
    """
    from breadcrumbs.cli import sessions

    with _api(url, token) as api:
        return sessions.messages(api, session, limit=limit, everything=everything, as_json=as_json)


letters = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""What workers have given up on.

    \b
    crumb dead-letters list
    crumb dead-letters retry 0197a3c4-5e6f-8007-8a9b-0c1d2e3f4a5b
    """,
)
app.add_typer(letters, name="dead-letters")
LetterIds = Annotated[list[str] | None, typer.Argument(help="Ids of dead letters.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]


@letters.command("list")
def list_letters(url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False) -> int:
    """List what failed for good, the newest first, with the reason.

    \b
    crumb dead-letters list
    crumb dead-letters list --json | jq .[].last_error
    """
    from breadcrumbs.cli import letters

    with _api(url, token) as api:
        return letters.show(api, as_json=as_json)


@letters.command("retry")
def retry_letters(
    ids: LetterIds = None, every: All = False, url: Url = DEFAULT_URL, token: Token = None
) -> int:
    """Let workers try again, once whatever made them fail is mended.

    \b
    crumb dead-letters retry 0197a3c4-5e6f-8007-8a9b-0c1d2e3f4a5b
    crumb dead-letters retry --all
    """
    from breadcrumbs.cli import letters

    with _api(url, token) as api:
        return letters.act(api, "POST", "/dlq/{id}/retry", ids or [], every=every, done="tried again")


@letters.command("delete")
def delete_letters(
    ids: LetterIds = None, every: All = False, url: Url = DEFAULT_URL, token: Token = None
) -> int:
    """Throw dead letters away.

    \b
    crumb dead-letters delete 0197a3c4-5e6f-8007-8a9b-0c1d2e3f4a5b
    """
    from breadcrumbs.cli import letters

    with _api(url, token) as api:
        return letters.act(api, "DELETE", "/dlq/{id}", ids or [], every=every, done="deleted")
