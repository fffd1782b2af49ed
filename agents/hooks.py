"""Hooks: Python functions that check or change a prompt before a model gets it, and an answer before users get it.

A definition names its hooks. Each one passes the text on, changes it, or refuses it with a reason for the user. A hook
that is missing, fails or is too slow fails the turn: a check is never skipped.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias, overload
from uuid import UUID

import anyio
import structlog

from breadcrumbs.agents.daemon_threads import DaemonThreads
from breadcrumbs.agents.definition import AgentDefinition
from breadcrumbs.agents.models.base import Dialect, ModelRequest, PromptMessage, ToolCall
from breadcrumbs.agents.models.chat_format import request_json
from breadcrumbs.agents.receipts import encode_digest
from breadcrumbs.agents.request import AnswerRequest
from breadcrumbs.agents.tools.base import is_being_cancelled
from breadcrumbs.runtime.breadcrumb.text import encodable_text
from breadcrumbs.runtime.errors import BreadcrumbsError, InvalidInput, StartupError
from breadcrumbs.runtime.workers.errors import TurnFailed, TurnRefused

_log = structlog.get_logger("breadcrumbs.agents")

DEFAULT_SECONDS: Final = 10.0
MAX_SECONDS: Final = 300.0
MAX_REASON_CHARACTERS: Final = 1_000
_MAX_CHARACTERS: Final = 4 << 20
"""Maximum length of a changed prompt or answer."""
_MAX_MESSAGES: Final = 10_000
_NAME: Final = re.compile(r"^[A-Za-z0-9_.-]{1,64}$")

Stage = Literal["before_model", "before_answer"]


class Refuse(BreadcrumbsError):
    """Raised by a hook to end the turn. The reason is shown to the user."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class HookCall:
    """The argument of a hook."""

    stage: Stage
    text: str
    """`before_answer`: the answer. `before_model`: the newest message of the prompt."""
    messages: tuple[PromptMessage, ...]
    """`before_model`: the whole prompt. `before_answer`: empty."""
    agent_id: str
    session_id: str | None
    owner_id: UUID
    trigger_id: str
    """The id of the message that is answered."""

    def map(self, change: Callable[[str], str]) -> list[PromptMessage]:
        """Return the messages with each text changed, also in tool calls. The system prompt is not changed."""
        return [
            message if message.role == "system" else _mapped(message, change) for message in self.messages
        ]


HookResult: TypeAlias = str | Sequence[PromptMessage] | None
"""None: pass. A text: the changed answer. Messages: the changed prompt."""
HookFunction: TypeAlias = Callable[[HookCall], HookResult | Awaitable[HookResult]]


def _mapped(message: PromptMessage, change: Callable[[str], str]) -> PromptMessage:
    calls = tuple(ToolCall(call.id, call.name, change(call.arguments)) for call in message.tool_calls)
    return message._replace(content=change(message.content), tool_calls=calls)


@dataclass(frozen=True, slots=True)
class Hook:
    """A function with the name by which definitions use it. Calling the hook calls the function."""

    name: str
    function: HookFunction
    timeout: float = DEFAULT_SECONDS

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(
                f"invalid hook name {self.name[:80]!r}: use 1 to 64 letters, digits, _, - or .", where="name"
            )
        if not (0 < self.timeout <= MAX_SECONDS and math.isfinite(self.timeout)):
            raise InvalidInput(
                f"{self.name}: the timeout must be greater than 0 and at most {MAX_SECONDS:g} seconds",
                where="timeout",
            )

    def __call__(self, call: HookCall) -> Any:
        return self.function(call)


@overload
def hook(function: HookFunction, /) -> Hook: ...
@overload
def hook(*, name: str | None = None, timeout: float = DEFAULT_SECONDS) -> Callable[[HookFunction], Hook]: ...
def hook(
    function: HookFunction | None = None, *, name: str | None = None, timeout: float = DEFAULT_SECONDS
) -> Hook | Callable[[HookFunction], Hook]:
    """Make a hook from a function that takes a `HookCall`, async or not.

    It returns None to pass, the changed text of an answer, or the changed messages of a prompt. It raises `Refuse` to
    end the turn. `timeout` is in seconds. The name is that of the function unless `name` is given.
    """

    def make(function: HookFunction) -> Hook:
        return Hook(name if name is not None else getattr(function, "__name__", ""), function, timeout)

    return make if function is None else make(function)


@dataclass(slots=True)
class HookedPrompt:
    """A prompt after its hooks, with the prompts before them."""

    prompt: ModelRequest
    _steps: list[tuple[str, ModelRequest | None, ModelRequest]] = field(default_factory=list)
    """Name of the hook, the prompt before it (None: not changed), and the prompt after it."""

    def add(self, name: str, changed: ModelRequest | None) -> None:
        before = None if changed is None else self.prompt
        self.prompt = changed or self.prompt
        self._steps.append((name, before, self.prompt))

    def entries(self, dialect: Dialect) -> list[list[str]]:
        """Return the entries of a receipt: [name], or [name, digest before, digest after] if the hook changed it.

        The digests are those of the request in the form in which it was sent, without and with the change.
        """
        return [
            [name] if before is None else [name, _digest(dialect, before), _digest(dialect, after)]
            for name, before, after in self._steps
        ]


def _digest(dialect: Dialect, request: ModelRequest) -> str:
    return encode_digest(sha256(request_json(dialect, request)).digest())


class Hooks:
    """The hooks of a process, by name."""

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._hooks: dict[str, Hook] = {}
        for one in hooks:
            if one.name in self._hooks:
                raise StartupError(
                    f"two hooks have the name {one.name!r}: pass another name=… to one of them"
                )
            self._hooks[one.name] = one
        self._threads = DaemonThreads("hook")

    def check(self, definition: AgentDefinition) -> None:
        """Raise `InvalidInput` if a hook of a definition is missing."""
        if definition.hooks is None:
            return
        for stage in ("before_model", "before_answer"):
            for number, name in enumerate(getattr(definition.hooks, stage)):
                if name not in self._hooks:
                    raise InvalidInput(self._missing(name), where=f"hooks.{stage}[{number}]")

    def _missing(self, name: str) -> str:
        close = difflib.get_close_matches(name, self._hooks, n=1)
        known = (
            f"did you mean {close[0]!r}?" if close else f"hooks: {', '.join(sorted(self._hooks)) or 'none'}"
        )
        return f"hook {name!r} not found in the process that runs the agent; {known}"

    async def before_model(self, request: AnswerRequest, prompt: ModelRequest) -> HookedPrompt:
        """Run the hooks of a prompt. Raise `TurnRefused` or `TurnFailed` if one does not pass it."""
        hooked = HookedPrompt(prompt)
        names = request.definition.hooks.before_model if request.definition.hooks is not None else ()
        for name in names:
            messages = hooked.prompt.messages
            text = messages[-1].content if messages else ""
            result = await self._run(name, _call(request, "before_model", text, messages))
            hooked.add(name, _changed_prompt(name, hooked.prompt, result))
        return hooked

    async def before_answer(self, request: AnswerRequest, text: str) -> tuple[str, list[list[str]]]:
        """Run the hooks of an answer. Return its text and the entries of the receipt. Raises like `before_model`."""
        entries: list[list[str]] = []
        names = request.definition.hooks.before_answer if request.definition.hooks is not None else ()
        for name in names:
            result = await self._run(name, _call(request, "before_answer", text, ()))
            changed = _changed_text(name, result)
            if changed is None or changed == text:
                entries.append([name])
                continue
            entries.append([name, _text_digest(text), _text_digest(changed)])
            text = changed
        return text, entries

    async def _run(self, name: str, call: HookCall) -> HookResult:
        hook = self._hooks.get(name)
        if hook is None:
            raise TurnFailed(f"{call.agent_id}: {self._missing(name)}")
        try:
            with anyio.fail_after(hook.timeout):
                return await self._result(hook, call)
        except Refuse as refusal:
            raise TurnRefused(
                encodable_text(refusal.reason)[:MAX_REASON_CHARACTERS] or "refused", name
            ) from None
        except TimeoutError:
            reason = f"the hook {name!r} did not finish within {hook.timeout:g} s"
        except anyio.get_cancelled_exc_class():
            if is_being_cancelled():
                raise
            reason = f"the hook {name!r} was cancelled by its own code"
        except (Exception, SystemExit) as error:  # a hook cannot stop the worker
            # The text of the error can quote the message that the hook should have changed.
            reason = f"the hook {name!r} failed: {type(error).__name__}"
        _log.warning("hook failed", hook=name, stage=call.stage, agent=call.agent_id, reason=reason)
        raise TurnFailed(f"{reason}, so the {'prompt' if call.messages else 'answer'} was not passed on")

    async def _result(self, hook: Hook, call: HookCall) -> HookResult:
        function = hook.function
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 (an object with an async __call__)
        ):
            result: Any = function(call)
        else:
            result = await self._threads.run(lambda: function(call))
        returned: HookResult = await result if inspect.isawaitable(result) else result
        return returned


def _call(request: AnswerRequest, stage: Stage, text: str, messages: tuple[PromptMessage, ...]) -> HookCall:
    return HookCall(
        stage,
        text,
        messages,
        request.definition.agent_id,
        request.trigger.session_id,
        request.owner,
        request.origin.id,
    )


def _changed_prompt(name: str, prompt: ModelRequest, result: HookResult) -> ModelRequest | None:
    """Return the changed prompt, or None if the hook passed it."""
    if result is None:
        return None
    if isinstance(result, str) or not isinstance(result, Sequence):
        raise TurnFailed(f"the hook {name!r} returned {type(result).__name__}: return messages or None")
    messages: tuple[Any, ...] = tuple(result)
    if not messages or len(messages) > _MAX_MESSAGES:
        raise TurnFailed(f"the hook {name!r} returned {len(messages)} messages: return 1 to {_MAX_MESSAGES}")
    if not all(isinstance(one, PromptMessage) and isinstance(one.content, str) for one in messages):
        raise TurnFailed(f"the hook {name!r} returned a message that is no PromptMessage")
    _check_size(name, sum(len(one.content) for one in messages))
    return None if messages == prompt.messages else replace(prompt, messages=messages)


def _changed_text(name: str, result: HookResult) -> str | None:
    if result is None:
        return None
    if not isinstance(result, str):
        raise TurnFailed(f"the hook {name!r} returned {type(result).__name__}: return a text or None")
    _check_size(name, len(result))
    return encodable_text(result)


def _check_size(name: str, size: int) -> None:
    if size > _MAX_CHARACTERS:
        raise TurnFailed(
            f"the hook {name!r} returned {size:,} characters, and the limit is {_MAX_CHARACTERS:,}"
        )


def _text_digest(text: str) -> str:
    return encode_digest(sha256(encodable_text(text).encode()).digest())
