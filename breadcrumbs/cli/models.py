"""The commands `crumb model check`, `crumb model list` and `crumb models`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from breadcrumbs.cli.options import ConfigOption, JsonOption
from breadcrumbs.cli.output import (
    OK,
    PROBLEM,
    UsageError,
    command,
    console,
    for_people,
    one_line,
    print_json,
    say,
    visible,
)

if TYPE_CHECKING:
    from breadcrumbs.agents.models.check import ModelCheck
commands = typer.Typer()
models = typer.Typer(
    no_args_is_help=True,
    help="""Try models, and list the ways to name one.

    \b
    crumb model check ollama:llama3.2    try it, and explain each problem
    crumb model list                     providers, their keys, and your aliases
    """,
)
commands.add_typer(models, name="model")

_SHOWN_AVAILABLE = 20


@models.command()
def check(
    model: Annotated[
        str | None, typer.Argument(help="Model, such as ollama:llama3.2. Default: the model of the settings.")
    ] = None,
    config: ConfigOption = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, max=3600, help="Seconds to wait for each answer.")
    ] = 60.0,
    as_json: JsonOption = False,
) -> int:
    """Try a model: connection, key, name, streaming and tool calls.

    \b
    crumb model check                               the model of the settings
    crumb model check ollama:llama3.2
    OPENAI_API_KEY=... crumb model check openai:gpt-4.1-mini
    crumb model check 'http://127.0.0.1:8000/v1#my-model'

    Sends two short prompts. Exit code 0: the model works, perhaps with warnings. 1: it does not, with the reason and
    the next step. 2: the command line or the settings are invalid.
    """
    from breadcrumbs.composition.model_checks import run_model_check
    from breadcrumbs.runtime.errors import InvalidInput
    from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(config=config, log_level="error")
    people = for_people(as_json)
    try:
        step = (lambda text: say(f"{text} …")) if people else None
        checked = run_model_check(settings, model, timeout=timeout, on_step=step)
    except InvalidInput as error:
        raise UsageError(f"{error}. To see all forms, run: {command()} model list") from None
    if people:
        _print_check(checked)
    else:
        print_json(_check_document(checked))
    return OK if checked.ok else PROBLEM


def _check_document(checked: ModelCheck) -> dict[str, Any]:
    from dataclasses import asdict

    return {"ok": checked.ok, **{name: value for name, value in asdict(checked).items() if value is not None}}


def _print_check(checked: ModelCheck) -> None:
    out = console()
    if checked.ok:
        out.print(f"[bold green]✓[/] {visible(checked.model)} answers", markup=True)
        out.print(f"  answer      {one_line(checked.answer, 60)}", markup=False)
        out.print(
            f"  time        {checked.first_text_seconds} s to the first text, {checked.seconds} s in all"
        )
        out.print(f"  streaming   {'yes' if checked.streaming else 'no'}")
        out.print(f"  tool calls  {'yes' if checked.tool_calls else 'no'}")
    for finding in checked.warnings:
        out.print(f"[bold yellow]![/] {finding.problem}: ", end="")
        out.print(visible(finding.details), markup=False)
        out.print(f"  {visible(finding.advice)}", markup=False)
    if checked.problem is not None:
        out.print(f"[bold red]✗[/] {checked.problem.problem}: ", end="")
        out.print(visible(checked.problem.details), markup=False)
        out.print(f"  {visible(checked.problem.advice)}", markup=False)
        _print_available(checked.available)
    else:
        out.print(f"\nUse it: {command()} up --model {_shell_word(checked.model)}", markup=False)


def _print_available(available: list[str]) -> None:
    if not available:
        return
    out = console()
    out.print("\nmodels of the server:")
    for name in available[:_SHOWN_AVAILABLE]:
        out.print(f"  {visible(name)}", markup=False)
    if len(available) > _SHOWN_AVAILABLE:
        out.print(f"  … and {len(available) - _SHOWN_AVAILABLE} more (--json lists all)")


def _shell_word(text: str) -> str:
    import shlex

    return shlex.quote(visible(text))


@models.command("list")
def list_models(config: ConfigOption = None, as_json: JsonOption = False) -> int:
    """List the ways to name a model, and your aliases.

    Also shows the variables of the keys and your endpoints.

    \b
    crumb model list
    crumb model list --json | jq -r '.aliases[].name'
    """
    from breadcrumbs.composition.model_checks import default_model, open_models
    from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(config=config)
    pool = open_models(settings)
    document = {
        "default": default_model(settings),
        "forms": _form_documents(),
        "aliases": [{"name": name, "model": model} for name, model in sorted(pool.aliases.items())],
        "endpoints": pool.endpoint_urls,
    }
    if for_people(as_json):
        _print_models(document)
    else:
        print_json(document)
    return OK


def _form_documents() -> list[dict[str, Any]]:
    from breadcrumbs.agents.models.providers import model_forms

    return [
        {
            "example": form.example,
            "description": form.description,
            "key_env": form.key_env or None,
            "key_is_set": bool(os.environ.get(form.key_env)) if form.key_env else None,
        }
        for form in model_forms()
    ]


def _print_models(document: dict[str, Any]) -> None:
    out = console()
    out.print("forms, with an example:\n")
    width = max(len(form["example"]) for form in document["forms"])
    for form in document["forms"]:
        key = "no key"
        if form["key_env"]:
            key = f"{form['key_env']} ({'set' if form['key_is_set'] else 'not set'})"
        out.print(f"  {form['example']:<{width}}  {form['description']}; {key}", markup=False)
    for title, rows in (
        ("aliases", [(alias["name"], alias["model"]) for alias in document["aliases"]]),
        ("endpoints", [(f"{name}:…", url) for name, url in document["endpoints"].items()]),
    ):
        if rows:
            out.print(f"\nyour {title}:\n")
        for name, meaning in rows:
            out.print(f"  {visible(name)}  →  {visible(meaning)}", markup=False)
    out.print(f"\ndefault model: {visible(document['default'])}", markup=False)
    out.print(f"\nTry one:  {command()} model check {document['forms'][1]['example']}", markup=False)
    out.print(f"Use it:   {command()} up --model {document['forms'][1]['example']}", markup=False)


@commands.command("models")
def show_table(
    model: Annotated[
        str | None, typer.Argument(help="Show only this model, such as openai:gpt-4.1. Default: all.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show context windows, prices and abilities of models.

    \b
    crumb models
    crumb models openai:gpt-4.1-mini
    crumb models --json | jq '.models[] | select(.images)'

    The entries come from the package, from the file of the setting models.table, and from models.windows and
    models.prices. Exit code 1: the file is invalid, and running processes use its last valid content.
    """
    from breadcrumbs.agents.models.prices import price_of, prices_in
    from breadcrumbs.agents.models.table import table_in
    from breadcrumbs.agents.models.windows import window_of, windows_in
    from breadcrumbs.runtime.settings.settings import load_settings

    settings = load_settings(config=config).models
    table, windows, prices = table_in(settings), windows_in(settings), prices_in(settings)
    names = sorted({*table.entries(), *windows, *prices}) if model is None else [model]
    rows = []
    for name in names:
        price = price_of(name, prices)
        rows.append(
            {
                "model": name,
                "window": window_of(name, windows),
                "price": None if price is None else [price.input, price.output],
                "images": table.accepts_images(name),
            }
        )
    if for_people(as_json):
        _print_table(rows, str(table.path) if table.path else "")
    else:
        print_json({"file": str(table.path) if table.path else None, "models": rows})
    return OK


def _print_table(rows: list[dict[str, Any]], path: str) -> None:
    out = console()
    width = max([5, *(len(row["model"]) for row in rows)])
    out.print(f"{'model':<{width}}  {'window':>9}  {'price of a million tokens':<25}  images", markup=False)
    for row in rows:
        window = "unknown" if row["window"] is None else f"{row['window']:,}"
        price = "unknown" if row["price"] is None else "in {:g}, out {:g}".format(*row["price"])
        images = "yes" if row["images"] else "no"
        out.print(f"{visible(row['model']):<{width}}  {window:>9}  {price:<25}  {images}", markup=False)
    source = f"your file: {path}" if path else 'to add prices: [models] table = "models.toml" in the settings'
    out.print(f"\n{visible(source)}", markup=False)
