"""Registry of the HTTP servers that agents use: model endpoints and ADK servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from breadcrumbs.agents.models.endpoint import Endpoint, EndpointLimits, ServerKind
from breadcrumbs.runtime.breadcrumb.validation import error_lines
from breadcrumbs.runtime.errors import InvalidInput, StartupError

Seconds = Annotated[float, Field(gt=0, le=86_400)]
EndpointName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]

S = TypeVar("S", bound=BaseModel)

_MAX_SHOWN_CHARACTERS = 80


class EndpointSettings(BaseModel):
    """Settings of one server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str | None = Field(None, description="Base URL, up to and including /v1. Optional for a preset")
    key: SecretStr | None = None
    key_env: str | None = Field(None, description="Environment variable that contains the key")
    streaming: bool = True

    def read_key(self, environment: Mapping[str, str], key_env: str | None = None) -> SecretStr | None:
        """Return the key, or the value of its environment variable, or None. `key_env` is the default variable."""
        if self.key:
            return self.key
        value = environment.get(self.key_env or key_env or "")
        return SecretStr(value) if value else None


class EndpointRegistry:
    """Endpoints of the settings, and endpoints that operators name by URL. Each has one HTTP client."""

    def __init__(
        self,
        kind: ServerKind,
        urls: Mapping[str, str],
        open_endpoint: Callable[[str], Endpoint],
        limits: EndpointLimits,
    ) -> None:
        """`urls` are the parsed URLs by name. `open_endpoint` is called at the first use of a name."""
        self._kind = kind
        self._urls = urls
        self._open_endpoint = open_endpoint
        self._limits = limits
        self._endpoints: dict[str, Endpoint] = {}

    def get(self, name: str) -> Endpoint:
        """Return the endpoint with this name, opened at the first use."""
        if name not in self._endpoints:
            self._endpoints[name] = self._open_endpoint(name)
        return self._endpoints[name]

    def find(self, address: str, *, trusted: bool) -> tuple[str | None, Endpoint]:
        """Return the endpoint at a URL, and its name in the settings or None.

        Only an operator (`trusted`) may name a URL that is not in the settings. Otherwise the definition of a client
        could send prompts to any server.
        """
        try:
            url = self._kind.parse_url(address)
        except StartupError as error:
            raise InvalidInput(str(error), where=self._kind.field) from None
        for name, configured in self._urls.items():
            if configured == url:
                return name, self.get(name)
        if not trusted:
            raise InvalidInput(
                f"unknown {self._kind.settings_name} {shorten(url)}: add it to the settings, because an agent "
                "definition may use only those in the settings",
                where=self._kind.field,
            )
        if url not in self._endpoints:
            self._endpoints[url] = Endpoint(url, kind=self._kind, limits=self._limits)
        return None, self._endpoints[url]

    async def close(self) -> None:
        for endpoint in self._endpoints.values():
            await endpoint.close()


def validate_settings(
    model: type[S], settings: S | Mapping[str, Any] | None, *, label: str, prefix: tuple[str, ...] = ()
) -> S:
    """Return validated settings. Raises `StartupError` with all errors. `prefix` is put before the path of each."""
    if isinstance(settings, model):
        return settings
    try:
        return model.model_validate(dict(settings or {}))
    except ValidationError as error:
        lines = error_lines(error, prefix=prefix)
        raise StartupError(f"invalid {label}:\n{lines}") from None


def shorten(text: str) -> str:
    """Limit the length of a text for an error message. A client can have written it."""
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[: _MAX_SHOWN_CHARACTERS - 1] + "…"
