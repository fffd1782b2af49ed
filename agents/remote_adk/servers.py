"""The ADK servers of the settings, and which of them an agent's definition means.

    [adk.servers.shop]
    url = "http://127.0.0.1:8000"
    app = "shop_agent"              the app of agents that name none
    key_env = "SHOP_KEY"            sent as a bearer token, where a proxy in front of the server wants one

What the settings say is the operator's word. A definition may come from a client: it can choose among these
servers, but it cannot send what people say to a URL of its own making.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

import anyio
import structlog
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from breadcrumbs.agents.agents_in_force import Agent
from breadcrumbs.agents.definition import AppName
from breadcrumbs.agents.models.base import ModelError
from breadcrumbs.agents.models.endpoint import Endpoint, Limits
from breadcrumbs.agents.remote_adk.client import AdkServer
from breadcrumbs.runtime.errors import InvalidInput, StartupError

_log = structlog.get_logger("breadcrumbs.adk")

_LOOK_AT_START = 3.0

Seconds = Annotated[float, Field(gt=0, le=86_400)]
ServerName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]


class AdkServerSettings(BaseModel):
    """One server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(description="Where it answers: what comes before /list-apps")
    app: AppName | None = Field(None, description="The app of agents that name none")
    key: SecretStr | None = None
    key_env: str | None = Field(None, description="Environment variable that holds the key")
    streaming: bool = True


class AdkSettings(BaseModel):
    """Everything about ADK servers that can be set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    servers: dict[ServerName, AdkServerSettings] = Field(default_factory=dict)
    connect_timeout: Seconds = 10.0
    read_timeout: Seconds = 120.0
    """Between two events: an agent may be busy with its tools for a while."""
    total_timeout: Seconds = 600.0
    max_answer_bytes: Annotated[int, Field(ge=1, le=64 << 20)] = 1 << 20

    @property
    def limits(self) -> Limits:
        return Limits(
            connect=self.connect_timeout,
            read=self.read_timeout,
            total=self.total_timeout,
            max_text=self.max_answer_bytes,
            retries=0,  # a turn that failed is tried again as a whole
        )


@dataclass(frozen=True, slots=True)
class RemoteApp:
    """An app on a server: what stands behind an agent."""

    server: AdkServer
    app: str


class AdkServers:
    """The servers of the settings, one client each. The settings are checked here, at start."""

    def __init__(
        self,
        settings: AdkSettings | Mapping[str, Any] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = _checked(settings)
        environment = os.environ if environment is None else environment
        self._servers = {
            name: AdkServer(name, self._endpoint(name, server, environment))
            for name, server in self._settings.servers.items()
        }
        self._by_url: dict[str, AdkServer] = {}

    def resolve(self, agent: Agent) -> RemoteApp:
        """What a definition means. `InvalidInput` says what is missing and where to put it."""
        adk = agent.definition.adk
        wanted, app = (adk.server, adk.app) if adk is not None else (None, None)
        if wanted is not None and "://" in wanted:
            server, default = self._from_url(wanted, trusted=agent.trusted), None
        else:
            name = self._name(wanted)
            server, default = self._servers[name], self._settings.servers[name].app
        if (app := app or default) is None:
            raise InvalidInput(
                f"which app of {server.name}? Set adk.app in the definition, or app of adk.servers.{server.name} in "
                "the settings",
                where="adk.app",
            )
        return RemoteApp(server, app)

    async def look(self, agents: Iterable[Agent]) -> None:
        """At start: say in the log which apps are not where they should be. Their servers may yet come up."""
        async with anyio.create_task_group() as tasks:
            for agent in agents:
                if agent.definition.kind == "adk":
                    tasks.start_soon(self._look_for, agent)

    async def _look_for(self, agent: Agent) -> None:
        remote, problem = self.resolve(agent), f"no answer within {_LOOK_AT_START:g} s"
        with anyio.move_on_after(_LOOK_AT_START):
            try:
                await remote.server.require(remote.app)
                return
            except ModelError as error:
                problem = remote.server.explain(error).reason
        _log.error("an ADK agent cannot answer", agent=agent.definition.agent_id, problem=problem)

    async def close(self) -> None:
        for server in (*self._servers.values(), *self._by_url.values()):
            await server.close()

    def _name(self, wanted: str | None) -> str:
        names = sorted(self._servers)
        if wanted in self._servers:
            return wanted
        if wanted is None and len(names) == 1:
            return names[0]
        there = (
            f"There is {', '.join(names)}"
            if names
            else "The settings have none: add adk.servers.<name> with a url"
        )
        asked = "which ADK server?" if wanted is None else f"there is no ADK server {wanted[:80]!r}."
        raise InvalidInput(f"{asked} {there}", where="adk.server")

    def _from_url(self, wanted: str, *, trusted: bool) -> AdkServer:
        try:
            url = adk_url(wanted)
        except StartupError as error:
            raise InvalidInput(str(error), where="adk.server") from None
        for name, server in self._servers.items():
            if adk_url(self._settings.servers[name].url) == url:
                return server
        if not trusted:
            raise InvalidInput(
                f"{url[:80]} is no ADK server of the settings, and only these may be used: add it there",
                where="adk.server",
            )
        if url not in self._by_url:
            self._by_url[url] = AdkServer(url, Endpoint(url, limits=self._settings.limits))
        return self._by_url[url]

    def _endpoint(self, name: str, server: AdkServerSettings, environment: Mapping[str, str]) -> Endpoint:
        try:
            url = adk_url(server.url)
        except StartupError as error:
            raise StartupError(f"adk.servers.{name}.url: {error}") from None
        key = server.key
        if key is None and server.key_env is not None:
            if not environment.get(server.key_env):
                raise StartupError(f"the ADK server {name} needs a key, and {server.key_env} is not set")
            key = SecretStr(environment[server.key_env])
        return Endpoint(url, key=key, limits=self._settings.limits, streaming=server.streaming)


def adk_url(url: str) -> str:
    """The URL of a server without what people paste along with it; `StartupError` if it is none."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise StartupError("the URL of an ADK server cannot be read") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise StartupError("the URL of an ADK server looks like http://127.0.0.1:8000")
    if parts.username is not None or parts.password is not None:
        raise StartupError("put the key of an ADK server into the environment (key_env), not into its URL")
    if parts.query or parts.fragment:
        raise StartupError("the URL of an ADK server ends with its path: leave out what follows")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/list-apps')}"


def _checked(settings: AdkSettings | Mapping[str, Any] | None) -> AdkSettings:
    if isinstance(settings, AdkSettings):
        return settings
    try:
        return AdkSettings.model_validate(dict(settings or {}))
    except ValidationError as error:
        lines = [
            f"  {'.'.join(str(part) for part in ('adk', *detail['loc']))}: {detail['msg']}"
            for detail in error.errors(include_url=False, include_input=False)
        ]
        raise StartupError("these settings are not usable:\n" + "\n".join(lines)) from None
