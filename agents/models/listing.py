"""Cheap check of a model: ask its server for the list of models.

Nothing is generated, so it costs nothing. It finds a server that is down, a wrong URL and a rejected key. It does not
show that the model answers: `check_model` does, with prompts.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Final, Literal

import anyio
import httpx

from breadcrumbs.agents.models.base import Model, ModelError
from breadcrumbs.agents.models.chat_format import parse_json_or_none
from breadcrumbs.agents.models.endpoint import Endpoint
from breadcrumbs.agents.models.openai_compatible import OpenAICompatibleModel
from breadcrumbs.agents.models.providers import PRESETS

_MAX_LIST_BYTES: Final = 4 << 20
_MAX_LISTED: Final = 2_000

_NO_PROMPT: Final = "no prompt was sent"


@dataclass(frozen=True, slots=True)
class ModelList:
    """Reply of a server to `GET /models`."""

    status: int | None = None
    """HTTP status. None: there was no reply."""
    ids: tuple[str, ...] = ()
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Reachability:
    """Whether the server of a model can be used, as far as its list of models shows it.

    The texts contain no URL, so that everybody who may see the name of the model may read them.
    """

    status: Literal["ok", "warning", "error"]
    message: str
    advice: str = ""


async def ask_for_list(endpoint: Endpoint, *, seconds: float) -> ModelList:
    """Ask a server for its list of models. Never raises an error of the network or of the server."""
    try:
        with anyio.fail_after(seconds):
            request = endpoint.client.build_request(
                "GET", f"{endpoint.url}/models", headers=endpoint.headers(stream=False)
            )
            response = await endpoint.client.send(request, stream=True)
            try:
                if response.status_code != httpx.codes.OK:
                    return ModelList(response.status_code)
                body = await endpoint.read_body(response, _MAX_LIST_BYTES)
            finally:
                await response.aclose()
    except (TimeoutError, httpx.TimeoutException):
        return ModelList(timed_out=True)
    except (httpx.HTTPError, ModelError):
        return ModelList()
    return ModelList(response.status_code, tuple(_listed_ids(parse_json_or_none(body))))


def server_url(model: Model) -> str | None:
    """Return the URL of the server of a model. None: the model is built in."""
    return model.endpoint.url if isinstance(model, OpenAICompatibleModel) else None


async def check_reachability(model: Model, *, key_env: str = "", seconds: float) -> Reachability:
    """Check the server of a model with one request that costs nothing."""
    if not isinstance(model, OpenAICompatibleModel):
        return Reachability("ok", "built in, needs no server")
    listed = await ask_for_list(model.endpoint, seconds=seconds)
    if listed.status is None:
        return _judge_silence(listed, seconds)
    if listed.status == httpx.codes.OK:
        return _judge_list(model.model, listed)
    if model.endpoint.url == PRESETS["anthropic"].url:
        # Anthropic's list of models needs other headers than its OpenAI-compatible API.
        return Reachability("ok", f"its server answers ({_NO_PROMPT})")
    return _judge_refusal(listed.status, key_env)


def _judge_silence(listed: ModelList, seconds: float) -> Reachability:
    if listed.timed_out:
        return Reachability(
            "error",
            f"its server did not answer within {seconds:g} s",
            "check that the server is running and not overloaded; --model-timeout waits longer",
        )
    return Reachability(
        "error",
        "its server cannot be reached",
        "start the model server, or check its URL and the network; crumb model check shows the details",
    )


def _judge_list(wanted: str, listed: ModelList) -> Reachability:
    if not listed.ids or wanted in listed.ids:
        known = "its server answers and lists it" if listed.ids else "its server answers"
        return Reachability("ok", f"{known} ({_NO_PROMPT})")
    # Ollama lists `llama3.2` as `llama3.2:latest`.
    if f"{wanted}:latest" in listed.ids:
        return Reachability("ok", f"its server answers and lists it ({_NO_PROMPT})")
    close = difflib.get_close_matches(wanted, listed.ids, n=3, cutoff=0.4)
    similar = f", such as {', '.join(close)}" if close else ""
    return Reachability(
        "warning",
        f"its server does not list it among {len(listed.ids):,} models ({_NO_PROMPT})",
        f"choose one of its models{similar}; if the name is right, crumb model check tries it",
    )


def _judge_refusal(status: int, key_env: str) -> Reachability:
    key = key_env or "the key of the endpoint"
    if status == httpx.codes.UNAUTHORIZED:
        return Reachability(
            "error",
            "its server rejects the key (401)",
            f"set {key} to a valid key, in the environment of the process that runs agents",
        )
    if status == httpx.codes.FORBIDDEN:
        # A restricted key may be allowed to send prompts and not to list models.
        return Reachability(
            "warning",
            "its server does not allow this key to list models (403)",
            "crumb model check tries the model with a short prompt",
        )
    if status == httpx.codes.TOO_MANY_REQUESTS:
        return Reachability(
            "warning", "its server limits the rate (429)", "check the limits and the credit of the account"
        )
    if status >= 500:
        return Reachability(
            "error", f"its server fails with {status}", "read the log or the status page of the model server"
        )
    if 300 <= status < 400:
        return Reachability("error", f"its URL redirects ({status})", "set the URL that it redirects to")
    return Reachability("ok", f"its server answers, and has no list of models ({status}; {_NO_PROMPT})")


def _listed_ids(document: Any) -> list[str]:
    entries = document.get("data") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        return []
    ids = [entry.get("id") for entry in entries[:_MAX_LISTED] if isinstance(entry, dict)]
    return sorted(id for id in ids if isinstance(id, str))
