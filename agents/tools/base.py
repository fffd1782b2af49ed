"""Tools: typed Python functions that a model may call.

    @tool
    def word_count(text: Annotated[str, Field(description="What to count in")]) -> int:
        \"\"\"Count the words of a text.\"\"\"
        return len(text.split())

The signature becomes the JSON Schema, and the docstring becomes the description. Calls of a model go through `run`. It
validates the arguments, enforces the timeout, and returns results and errors as a `ToolResult`.

A function that is not async runs in its own thread, so that it does not block other sessions. After the timeout the
turn goes on. The thread cannot be stopped. It counts towards `MAX_THREADS` until the function returns.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import re
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypedDict, Unpack, overload
from uuid import UUID

import anyio
from anyio.lowlevel import RunVar

from breadcrumbs.agents.models.base import ToolSpec
from breadcrumbs.agents.tools.definition import ToolDefinition
from breadcrumbs.agents.tools.output import as_json, error_text, redacted_line
from breadcrumbs.agents.tools.parameters import ToolArguments, read_parameters
from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.schema_names import TOOL_CATALOG
from breadcrumbs.runtime.store.store import Store

DEFAULT_TIMEOUT: Final = 30.0
EXTERNAL_TIMEOUT: Final = 300.0
"""Default time limit of a tool that another process runs, in seconds from the request."""
MAX_THREADS: Final = 32
"""Limit per tool that is not async. A tool that hangs uses up only its own threads."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # the function names that the chat completions API accepts


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The turn that a tool call belongs to.

    The runtime passes it to a parameter of this type. The model does not see the parameter and cannot set it.
    """

    owner_id: UUID
    session_id: str | None
    agent_id: str
    trigger_id: str
    store: Store | None
    request_id: str | None = None
    """Id of the `tool.request.v1`, and idempotency key of the call: equal if the call runs again after a crash."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a tool call. `output` is a JSON value if `ok`, otherwise `error` is a message."""

    ok: bool
    output: Any
    error: str | None
    duration_ms: float
    is_unknown: bool = False
    """The worker stopped while the tool was running, and the tool did not run again."""
    response_id: UUID | None = None
    """The response of another process that the result was taken from."""


class ToolOptions(TypedDict, total=False):
    """Options of a tool."""

    name: str | None
    """Default: the name of the function."""
    description: str | None
    """Default: the docstring of the function."""
    timeout: float
    """Seconds."""
    return_to_llm: bool
    """False: the turn ends with the output of the tool, and the model is not called again."""
    idempotent: bool
    """True: if the worker stopped while the tool was running, it runs again with the same `ToolContext.request_id`."""
    external: bool
    """True: another process runs the tool, such as `crumb run-tools`. The agent waits for its response."""


class Tool:
    """A function that a model may call, made by `@tool`. Calling the tool calls the function."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        local_names: dict[str, Any] | None = None,
        **options: Unpack[ToolOptions],
    ) -> None:
        name, description = options.get("name"), options.get("description")
        self.external = options.get("external", False)
        timeout = options.get("timeout", EXTERNAL_TIMEOUT if self.external else DEFAULT_TIMEOUT)
        self.name = name if name is not None else getattr(function, "__name__", "")
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(
                f"invalid tool name {self.name!r}: use 1 to 64 letters, digits, _ or -, or pass name=…",
                where="name",
            )
        if not (timeout > 0 and math.isfinite(timeout)):
            raise InvalidInput(
                f"{self.name}: the timeout must be a number of seconds greater than 0", where="timeout"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidInput(f"{self.name}: a tool cannot be a generator: return the result")
        self._parameters = read_parameters(function, injected=ToolContext, local_names=local_names)
        self.description = description if description is not None else self._parameters.description
        self.timeout = timeout
        self.return_to_llm = options.get("return_to_llm", True)
        self.idempotent = options.get("idempotent", False)
        self.function = function
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 (an object with an async __call__)
        )
        self._threads: RunVar[anyio.Semaphore] = RunVar(f"threads of {self.name}")

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        return self._parameters.schema

    @property
    def definition(self) -> ToolDefinition:
        """The description of the tool without its function."""
        return ToolDefinition(
            self.name,
            self.description,
            self.parameters,
            self.timeout,
            self.return_to_llm,
            getattr(self, "idempotent", False),
            getattr(self, "external", False),
        )

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description=self.description, parameters=self.parameters)

    def check_arguments(self, arguments: str) -> None:
        """Raise `InvalidInput` if the function does not accept the arguments of a model."""
        self._parameters.read(arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name}{self._parameters.description_text}>"

    async def run(self, arguments: str | dict[str, Any], context: ToolContext) -> ToolResult:
        """Call the function with the arguments of a model. Raises nothing but cancellation from outside."""
        began = time.perf_counter()
        output, error = None, None
        try:
            output = await self._within_limit(self._parameters.read(arguments), context)
        except InvalidInput as refusal:
            error = redacted_line(f"{self.name}: {refusal.message}")
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            # The tool awaited a task that was cancelled. If this propagated, it would silently end the turn.
            error = f"{self.name} was cancelled by its own code"
        except (Exception, SystemExit) as failure:  # a tool cannot stop the worker
            error = f"{self.name} failed: {error_text(failure)}"
        duration = round((time.perf_counter() - began) * 1000, 3)
        return ToolResult(error is None, output, error, duration)

    async def _within_limit(self, given: ToolArguments, context: ToolContext) -> Any:
        named = given.named | dict.fromkeys(self._parameters.injected, context)

        def call() -> Any:
            return self.function(*given.positional, **named)

        output = None
        with anyio.move_on_after(self.timeout) as limit:
            try:
                output = await (_await_json(call()) if self._is_async else self._in_thread(call))
            except (Exception, SystemExit):
                if not limit.cancel_called:  # after the timeout, report the timeout and not this error
                    raise
        if limit.cancel_called:
            raise InvalidInput(f"did not finish within {self.timeout:g} s")
        return output

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        """Run the call in a daemon thread. The threads of anyio would keep the process alive if a tool hangs."""
        threads = self._threads.get(None)
        if threads is None:
            threads = anyio.Semaphore(MAX_THREADS)
            self._threads.set(threads)
        await threads.acquire()
        loop = asyncio.get_running_loop()
        ended = anyio.Event()
        outcome: list[Any] = []
        failure: list[BaseException] = []

        def finish() -> None:
            threads.release()
            ended.set()

        def work() -> None:
            try:
                result = call()
                # Convert in the thread: a large result can take as long as the call.
                outcome.append(result if inspect.isawaitable(result) else as_json(result))
            except BaseException as error:
                failure.append(error)
            finally:
                with suppress(RuntimeError):  # the event loop is closed
                    loop.call_soon_threadsafe(finish)

        variables = contextvars.copy_context()
        thread = threading.Thread(target=variables.run, args=(work,), name=f"tool {self.name}", daemon=True)
        try:
            thread.start()
        except BaseException:
            threads.release()
            raise
        await ended.wait()
        if failure:
            raise failure[0]
        return await _await_json(outcome[0]) if inspect.isawaitable(outcome[0]) else outcome[0]


async def _await_json(result: Awaitable[Any]) -> Any:
    return as_json(await result)


def is_being_cancelled() -> bool:
    """Return whether a cancellation comes from outside, and not from an awaited task."""
    task = asyncio.current_task()
    return anyio.current_effective_deadline() == -math.inf or (task is not None and task.cancelling() > 0)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None, **options: Unpack[ToolOptions]
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool from a typed function, async or not.

    `timeout` is in seconds. With `return_to_llm=False` the turn ends with the output of the tool. The model is not
    called again. If the worker stops while an `idempotent` tool runs, the tool runs again with the same
    `ToolContext.request_id`. Any other tool does not run again, and the model is told that the outcome is unknown.
    Another process runs an `external` tool, such as `crumb run-tools`. Its timeout begins with the request.
    """
    local_names = dict(sys._getframe(1).f_locals)

    def make(function: Callable[..., Any]) -> Tool:
        return Tool(function, local_names=local_names, **options)

    return make if function is None else make(function)


class Toolbox:
    """Collection of tools by name."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for one in tools:
            self.add(one)

    def add(self, new: Tool) -> None:
        """Add a tool. Raises `InvalidInput` if its name is taken."""
        if new.name in self._tools:
            raise InvalidInput(
                f"duplicate tool name {new.name!r}: pass another name=… to one of the tools", where="name"
            )
        self._tools[new.name] = new

    def get(self, name: str) -> Tool:
        """Return a tool. Raises `InvalidInput` if it is not found."""
        found = self._tools.get(name)
        if found is None:
            raise self._unknown_tools_error([name])
        return found

    def allowed(self, names: Iterable[str]) -> Toolbox:
        """Return a toolbox with only these tools, in this order. Raises `InvalidInput` if one is not found."""
        wanted = list(dict.fromkeys(names))
        if unknown := [name for name in wanted if name not in self._tools]:
            raise self._unknown_tools_error(unknown)
        return Toolbox(self._tools[name] for name in wanted)

    def _unknown_tools_error(self, names: list[str]) -> InvalidInput:
        missing = ", ".join(repr(name[:64]) for name in names)
        available = ", ".join(self.names) or "none"
        return InvalidInput(f"tool {missing} not found; available: {available}", where="tools")

    @property
    def names(self) -> list[str]:
        return sorted(self._tools)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(one.spec for one in self)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def catalogue(self) -> dict[str, Any]:
        """Return the fields of a `tool.catalog.v1` breadcrumb. Equal toolboxes give equal fields.

        The fields of an entry are those of RCRT. The hints reduce an entry to its name and description, because models
        get the schemas with the request.
        """
        entries = [
            {
                "name": one.name,
                "description": one.description,
                "inputSchema": one.parameters,
                "capabilities": {
                    "timeout": round(one.timeout * 1000),
                    "return_to_llm": one.return_to_llm,
                    "idempotent": one.idempotent,
                    **({"external": True} if one.external else {}),
                },
                "status": "active",
            }
            for one in sorted(self, key=lambda one: one.name)
        ]
        return {
            "schema_name": TOOL_CATALOG,
            "title": "Tool catalog",
            "tags": ["tool:catalog", "workspace:tools"],
            "context": {"tools": entries, "totalTools": len(entries), "activeTools": len(entries)},
            "llm_hints": {"include": ["tools.name", "tools.description"]},
        }


__all__ = ["Tool", "ToolContext", "ToolResult", "Toolbox", "tool"]
