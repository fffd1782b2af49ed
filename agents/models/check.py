"""Try a model with tiny requests, and explain each problem with the next step.

Three requests are sent: the list of models of the server, a short prompt with streaming, and a prompt that asks for a
tool call. A server without a list of models is not a problem. A model without streaming or tool calls works, so these
are warnings.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from breadcrumbs.agents.models.base import (
    Model,
    ModelError,
    ModelReply,
    ModelRequest,
    PromptMessage,
    ToolSpec,
)
from breadcrumbs.agents.models.endpoint import is_loopback_url
from breadcrumbs.agents.models.listing import ask_for_list
from breadcrumbs.agents.models.openai_compatible import OpenAICompatibleModel
from breadcrumbs.agents.models.providers import PRESETS

_LIST_SECONDS: Final = 10.0

_PROMPT: Final = ModelRequest((PromptMessage("user", "Count from one to five, in words."),))
_TOOL_PROMPT: Final = ModelRequest(
    (
        PromptMessage("system", "Answer only with a tool call."),
        # The offline model understands this form, too.
        PromptMessage("user", 'use add {"a": 2, "b": 3}'),
    ),
    (
        ToolSpec(
            "add",
            "Add two numbers.",
            {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        ),
    ),
)

ProblemKind = Literal[
    "server not reachable",
    "wrong URL",
    "key missing",
    "key rejected",
    "no such model",
    "rate limited",
    "timeout",
    "failed",
    "no streaming",
    "no tool calls",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a model, and the next step for the user."""

    problem: ProblemKind
    details: str
    advice: str


@dataclass(slots=True)
class ModelCheck:
    """Result of a check."""

    model: str
    url: str | None = None
    problem: Finding | None = None
    """Set if the model cannot be used."""
    warnings: list[Finding] = field(default_factory=list)
    available: list[str] = field(default_factory=list)
    """Models that the server lists. Empty if it has no list."""
    answer: str = ""
    first_text_seconds: float | None = None
    seconds: float | None = None
    streaming: bool | None = None
    tool_calls: bool | None = None

    @property
    def ok(self) -> bool:
        return self.problem is None


async def check_model(
    model: Model, *, key_env: str = "", on_step: Callable[[str], None] | None = None
) -> ModelCheck:
    """Try a model. `key_env` is the environment variable of its key, for the advice."""
    announce = on_step or (lambda _: None)
    result = ModelCheck(model.name)
    if isinstance(model, OpenAICompatibleModel):
        result.url = model.endpoint.url
        announce(f"connecting to {result.url}")
        # A server without a list is no problem: the real request reports the errors.
        result.available = list((await ask_for_list(model.endpoint, seconds=_LIST_SECONDS)).ids)
    announce("asking for a short answer")
    try:
        await _check_answer(model, result)
    except ModelError as error:
        result.problem = _explain(model, error, result.available, key_env)
        return result
    announce("asking for a tool call")
    await _check_tools(model, result)
    return result


async def _check_answer(model: Model, result: ModelCheck) -> None:
    began, pieces = time.monotonic(), 0

    async def count(_: str) -> None:
        nonlocal pieces
        if not pieces:
            result.first_text_seconds = round(time.monotonic() - began, 3)
        pieces += 1

    reply = await model.complete(_PROMPT, count)
    result.seconds = round(time.monotonic() - began, 3)
    result.answer = reply.text
    result.streaming = pieces > 1
    if not result.streaming:
        result.warnings.append(
            Finding(
                "no streaming",
                "the whole answer arrived in one piece",
                "It works, but users wait for the whole answer. Check that no proxy buffers the responses, "
                "or use a server that supports stream: true",
            )
        )


async def _check_tools(model: Model, result: ModelCheck) -> None:
    details = "the model answered with text instead of a tool call"
    try:
        reply: ModelReply | None = await model.complete(_TOOL_PROMPT)
    except ModelError as error:
        reply, details = None, error.reason
    result.tool_calls = bool(reply is not None and reply.tool_calls)
    if not result.tool_calls:
        result.warnings.append(
            Finding(
                "no tool calls",
                details,
                "It works for agents without tools. For the others choose a model that supports tools, or remove "
                'the list "tools" from the agent definition',
            )
        )


def _explain(model: Model, error: ModelError, available: list[str], key_env: str) -> Finding:
    """Return the problem behind a failed request."""
    reason, status = error.reason, error.status
    url = model.endpoint.url if isinstance(model, OpenAICompatibleModel) else ""
    if "cannot connect" in reason:
        return Finding("server not reachable", reason, _unreachable_advice(model, url))
    if status in (401, 403):
        where = f"Set {key_env}" if key_env else "Set key_env of the endpoint in [models.endpoints]"
        return Finding(
            "key rejected",
            reason,
            f"{where} to a valid key, in the environment of the process that runs agents",
        )
    if _is_unknown_model(error):
        return _unknown_model(model, reason, available, url)
    if _is_wrong_url(error):
        return Finding("wrong URL", reason, _url_advice(url))
    if status in (402, 429):
        return Finding(
            "rate limited", reason, "Wait and try again, or check the limits and the credit of the account"
        )
    if "no answer within" in reason or "no data" in reason:
        return Finding(
            "timeout", reason, "The server may still be loading the model. Try again, or use --timeout 300"
        )
    return Finding("failed", reason, "Read the message of the server above, and its log")


def _is_wrong_url(error: ModelError) -> bool:
    redirected = error.status is not None and 300 <= error.status < 400
    return redirected or error.status == 405 or "a web page" in error.reason


def _is_unknown_model(error: ModelError) -> bool:
    text = error.reason.lower()
    named = any(
        words in text for words in ("does not exist", "not found", "not a valid model", "unknown model")
    )
    return error.status == 404 or (error.status in (400, 422) and "model" in text and named)


def _unknown_model(model: Model, reason: str, available: list[str], url: str) -> Finding:
    wanted = model.model if isinstance(model, OpenAICompatibleModel) else model.name
    if not available:
        return Finding(
            "wrong URL",
            reason,
            f"The server lists no models. {_url_advice(url)}. If the URL is right, check the name of the model",
        )
    if wanted in available:
        return Finding("failed", reason, "The server lists this model. Check whether the account may use it")
    close = difflib.get_close_matches(wanted, available, n=3, cutoff=0.4) or available[:5]
    advice = f"Use one of the {len(available)} models of the server, such as {', '.join(close)}"
    if model.name.startswith("ollama:"):
        advice += f". To download it: ollama pull {wanted}"
    return Finding("no such model", reason, advice)


def _unreachable_advice(model: Model, url: str) -> str:
    if model.name.startswith("ollama:") and is_loopback_url(url):
        return "Start it with: ollama serve"
    if model.name.startswith("vllm:") and is_loopback_url(url):
        return f"Start it with: vllm serve {model.name.partition(':')[2]}"
    if is_loopback_url(url):
        return f"Start the model server, or correct the URL {url}"
    return f"Check the URL {url}, the network and the proxy (HTTPS_PROXY)"


def _url_advice(url: str) -> str:
    if not url.endswith("/v1") and url not in {preset.url for preset in PRESETS.values()}:
        return f"The URL is {url}, and most servers need /v1 at its end"
    return f"Check that {url}/chat/completions is the right address"
