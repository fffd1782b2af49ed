"""The ADK servers of the settings, and lookups of an agent's app.

    [adk.servers.shop]
    url = "http://127.0.0.1:8000"
    app = "shop_agent"              the app of agents that do not name one
    key_env = "SHOP_KEY"            sent as a bearer token, for a proxy in front of the server

The operator writes the settings. An agent definition can come from a client. It can choose one of these servers, but
it cannot send messages to other URLs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import anyio
import structlog
from pydantic import BaseModel, ConfigDict, Field

from breadcrumbs.agents.agents_in_force import ActiveAgent
from breadcrumbs.agents.definition import AppName
from breadcrumbs.agents.models.base import ModelError
from breadcrumbs.agents.models.endpoint import Endpoint, EndpointLimits, ServerKind
from breadcrumbs.agents.models.endpoint_registry import (
    EndpointName,
    EndpointRegistry,
    EndpointSettings,
    Seconds,
    validate_settings,
)
from breadcrumbs.agents.remote_adk.client import AdkServer
from breadcrumbs.runtime.errors import InvalidInput, StartupError

_log = structlog.get_logger("breadcrumbs.adk")

_CHECK_SECONDS = 3.0

ADK_SERVER: Final = ServerKind(
    label="an ADK server",
    settings_name="ADK server",
    field="adk.server",
    url_example="http://127.0.0.1:8000",
    request_path="/list-apps",
)


class AdkServerSettings(EndpointSettings):
    """Settings of one ADK server."""

    url: str = Field(description="Base URL, without /list-apps")
    app: AppName | None = Field(None, description="The app of agents that do not name one")


class AdkSettings(BaseModel):
    """The `adk` section of the settings. Times are in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    servers: dict[EndpointName, AdkServerSettings] = Field(default_factory=dict)
    connect_timeout: Seconds = 10.0
    read_timeout: Seconds = 120.0
    """Timeout between two events. An app can run its tools for a while."""
    total_timeout: Seconds = 600.0
    max_answer_bytes: Annotated[int, Field(ge=1, le=64 << 20)] = 1 << 20

    @property
    def limits(self) -> EndpointLimits:
        return EndpointLimits(
            connect=self.connect_timeout,
            read=self.read_timeout,
            total=self.total_timeout,
            max_text=self.max_answer_bytes,
            retries=0,  # the worker retries the whole turn
        )


@dataclass(frozen=True, slots=True)
class RemoteApp:
    """The app of an agent, and its server."""

    server: AdkServer
    app: str


class AdkServers:
    """The ADK servers of the settings, with one HTTP client each. The constructor validates the settings."""

    def __init__(
        self,
        settings: AdkSettings | Mapping[str, Any] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = validate_settings(AdkSettings, settings, label="settings", prefix=("adk",))
        self._environment = os.environ if environment is None else environment
        urls = {name: self._url_of(name) for name in self._settings.servers}
        self._endpoints = EndpointRegistry(ADK_SERVER, urls, self._open_endpoint, self._settings.limits)
        self._servers = {name: AdkServer(name, self._endpoints.get(name)) for name in urls}
        self._by_url: dict[str, AdkServer] = {}

    def resolve(self, agent: ActiveAgent) -> RemoteApp:
        """Return the app of an agent. Raises `InvalidInput` if the server or the app is unknown."""
        adk = agent.definition.adk
        wanted, app = (adk.server, adk.app) if adk is not None else (None, None)
        if wanted is not None and "://" in wanted:
            server, default = self._at_url(wanted, trusted=agent.trusted), None
        else:
            name = self._name(wanted)
            server, default = self._servers[name], self._settings.servers[name].app
        if (app := app or default) is None:
            raise InvalidInput(
                f"no app for {server.name}: set adk.app in the definition, or adk.servers.{server.name}.app in the "
                "settings",
                where="adk.app",
            )
        return RemoteApp(server, app)

    async def check_apps(self, agents: Iterable[ActiveAgent]) -> None:
        """Log the agents that cannot answer now. Called at start. Their servers can become available later."""
        async with anyio.create_task_group() as tasks:
            for agent in agents:
                if agent.definition.kind == "adk":
                    tasks.start_soon(self._check_app, agent)

    async def _check_app(self, agent: ActiveAgent) -> None:
        remote, problem = self.resolve(agent), f"no answer within {_CHECK_SECONDS:g} s"
        with anyio.move_on_after(_CHECK_SECONDS):
            try:
                await remote.server.require_app(remote.app)
                return
            except ModelError as error:
                problem = remote.server.explain(error).reason
        _log.error("adk agent not available", agent=agent.definition.agent_id, problem=problem)

    async def close(self) -> None:
        await self._endpoints.close()

    def _name(self, wanted: str | None) -> str:
        names = sorted(self._servers)
        if wanted in self._servers:
            return wanted
        if wanted is None and len(names) == 1:
            return names[0]
        advice = (
            f"Use one of: {', '.join(names)}"
            if names
            else "The settings have no ADK server: add adk.servers.<name> with a url"
        )
        problem = "no ADK server given." if wanted is None else f"ADK server {wanted[:80]!r} not found."
        raise InvalidInput(f"{problem} {advice}", where="adk.server")

    def _at_url(self, address: str, *, trusted: bool) -> AdkServer:
        name, endpoint = self._endpoints.find(address, trusted=trusted)
        if name is not None:
            return self._servers[name]
        if endpoint.url not in self._by_url:
            self._by_url[endpoint.url] = AdkServer(endpoint.url, endpoint)
        return self._by_url[endpoint.url]

    def _url_of(self, name: str) -> str:
        try:
            return ADK_SERVER.parse_url(self._settings.servers[name].url)
        except StartupError as error:
            raise StartupError(f"adk.servers.{name}.url: {error}") from None

    def _open_endpoint(self, name: str) -> Endpoint:
        server = self._settings.servers[name]
        key = server.read_key(self._environment)
        if key is None and server.key_env is not None:
            raise StartupError(f"ADK server {name} needs a key: set {server.key_env} in the environment")
        return Endpoint(
            server.url, kind=ADK_SERVER, key=key, limits=self._settings.limits, streaming=server.streaming
        )
