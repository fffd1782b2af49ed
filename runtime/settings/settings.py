"""Settings: by flag, environment (`CRUMB_…`) and file, checked when a command starts.

Flags win over the environment, the environment over the file, the file over the defaults. The file is
`crumb.toml` in the working directory, or the one that `--config` or `CRUMB_CONFIG` names.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from breadcrumbs.runtime.breadcrumb.tags import DEFAULT_INHERITED
from breadcrumbs.runtime.breadcrumb.ttl import Duration, Expiry
from breadcrumbs.runtime.breadcrumb.validation import error_lines
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.settings.connection_limits import ConnectionLimits
from breadcrumbs.runtime.settings.rates import RateLimits
from breadcrumbs.runtime.store.quotas import Quotas

Role = Literal["emitter", "subscriber", "curator"]
ALL_ROLES: tuple[Role, ...] = ("curator", "emitter", "subscriber")

DEVELOPER = UUID("00000000-0000-0000-0000-000000000001")
"""Owner of what is posted without a token in the development mode; the id that RCRT's own clients use."""

OWN_EXTENSION = "chrome-extension://jhonahnlaladjgapifbbcbndedgfamck"
"""Origin of the extension in `extension/`. Its id follows from `key` in the manifest."""

# What nobody wants to keep, as in RCRT. A breadcrumb's own `ttl` wins.
DEFAULT_TTLS: dict[str, str] = {
    "system.ping.v1": "10m",
    "agent.thinking.v1": "6h",
    "agent.analysis.v1": "6h",
    "agent.metrics.v1": "7d",
    "tool.performance.v1": "7d",
}


class ApiKey(BaseModel):
    """A key, and who comes with it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: Annotated[SecretStr, Field(min_length=16)]
    owner_id: UUID
    agent_id: UUID | None = None
    agent_ids: tuple[UUID, ...] = Field((), description="More agents that tokens of this key may act as")
    roles: tuple[Role, ...] = ALL_ROLES
    name: str = ""


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(env_prefix="CRUMB_", extra="forbid", env_nested_delimiter="__")

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8081
    redis: str | None = Field(None, description="Address of a server of your own; none: the embedded one")
    data: Path | None = Field(None, description="Where the embedded server keeps its data")
    lanes: Annotated[int, Field(ge=1, le=4096)] | None = None
    namespace: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,32}$")] = "bc"

    api_keys: tuple[ApiKey, ...] = ()
    token_secret: Annotated[SecretStr, Field(min_length=32)] | None = Field(
        None, description="Signs tokens; none: one that the store made up at its first start"
    )
    token_ttl: Duration = Field("24h", validate_default=True)
    allowed_origins: tuple[str, ...] = ()
    allowed_extensions: tuple[str, ...] = Field(
        (OWN_EXTENSION,), description="Browser extensions that may use the server"
    )
    allowed_hosts: tuple[str, ...] = ()

    connection_limits: ConnectionLimits = Field(
        default_factory=ConnectionLimits, description="Limits on connections, request heads and slow clients"
    )
    max_body_bytes: Annotated[int, Field(ge=1024, le=64 << 20)] = 1 << 20
    max_response_bytes: Annotated[int, Field(ge=1024, le=256 << 20)] = Field(
        4 << 20, description="A page or a history ends (with a cursor) at so many bytes of stored bodies"
    )
    max_state_bytes: Annotated[int, Field(ge=1024, le=64 << 20)] = Field(
        1 << 20, description="Size of a session's state: its names and values as stored"
    )
    ttl_defaults: dict[str, Duration] = Field(
        default_factory=lambda: dict(DEFAULT_TTLS), validate_default=True
    )
    idempotency_ttl: Duration = Field("24h", validate_default=True)
    event_window: Duration = Field(
        "24h", validate_default=True, description="For how long streams can resume"
    )
    rcrt_events: bool = Field(True, description="Announce creations as RCRT's clients expect it")
    ping_interval: Duration = Field("10s", validate_default=True)
    max_streams_per_token: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Event streams that a token may have open in one process"
    )
    max_streams_per_owner: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Event streams that all tokens of an owner may have open in one process"
    )
    hygiene_interval: Duration = Field("30s", validate_default=True)

    rate_limits: RateLimits = Field(
        default_factory=RateLimits, description="How many requests a token and an owner may make"
    )

    quotas: Quotas = Field(default_factory=Quotas, description="How much an owner may keep; none: any amount")

    context_config: Path | None = Field(
        None, description="The context builder's config; none: the built-in one"
    )
    agents: Path | None = Field(None, description="Folder with agent definitions; none: the built-in ones")
    models: dict[str, Any] = Field(
        default_factory=dict,
        description="The models of the agents",
        repr=False,  # it may hold keys
    )
    adk: dict[str, Any] = Field(
        default_factory=dict,
        description="ADK servers that agents of the kind adk live on",
        repr=False,
    )
    model: str | None = Field(None, description="The model of agents that name none, such as ollama:llama3")
    tools: tuple[str, ...] = Field((), description="Tools of your own, as package.module:function")
    load: tuple[str, ...] = Field((), description="Python modules with agents and tools of your own")
    inherited_tags: tuple[str, ...] = Field(
        DEFAULT_INHERITED, description="Tag namespaces that an answer takes over from what it answers"
    )
    lease_seconds: Annotated[float, Field(ge=0.2, le=300)] = Field(
        6.0, description="After how long a worker that is connected but does not answer loses its lanes"
    )
    turn_attempts: Annotated[int, Field(ge=1, le=100)] = 4

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "text", "json"] = "auto"

    @field_validator("redis")
    @classmethod
    def _known_scheme(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(
            ("redis://", "rediss://", "unix://", "redis+cluster://", "rediss+cluster://")
        ):
            raise ValueError(
                "use redis://host:6379/0, rediss:// for TLS, unix:///path, or redis+cluster://host:port"
            )
        return url

    @field_validator("allowed_extensions")
    @classmethod
    def _are_extension_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not re.fullmatch(r"(chrome|moz)-extension://([A-Za-z0-9-]{1,64}|\*)/?", origin):
                raise ValueError(
                    f"{origin!r} is not an extension: use chrome-extension://<id>, moz-extension://<UUID>, or * in "
                    "place of the id for all extensions of that browser"
                )
        return origins

    @property
    def on_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def development_mode(self) -> bool:
        """Open to everybody who can reach it: only where that is this machine alone."""
        return not self.api_keys

    @property
    def limits_rates(self) -> bool:
        """On a machine of one's own nobody has to be kept from anything."""
        enabled = self.rate_limits.enabled
        return not self.development_mode if enabled is None else enabled

    @property
    def stream_limits(self) -> tuple[int, int]:
        """Event streams per token and per owner. In the development mode all local programs share one token."""
        per_token, per_owner = (4_096, 4_096) if self.development_mode else (32, 2_048)
        return self.max_streams_per_token or per_token, self.max_streams_per_owner or per_owner

    @property
    def expiries(self) -> dict[str, Expiry]:
        return {
            schema: Expiry(after=int(lifetime.total_seconds() * 1_000_000))
            for schema, lifetime in self.ttl_defaults.items()
        }

    def check(self) -> None:
        """What no single field can know."""
        if self.development_mode and not self.on_loopback:
            raise StartupError(
                f"{self.host} can be reached from other machines, and no API key is set. Set one, for example\n"
                '  CRUMB_API_KEYS=\'[{"key": "<at least 16 characters>", "owner_id": "<a UUID>"}]\'\n'
                "(python3 -c 'import secrets, uuid; print(secrets.token_urlsafe(24), uuid.uuid4())' makes both), "
                "or listen on 127.0.0.1"
            )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings


def load_settings(*, config: Path | None = None, **flags: Any) -> Settings:
    """Read all three sources; what is wrong is said with the name to change it by."""
    given = {name: value for name, value in flags.items() if value is not None}
    path = config or (Path(named) if (named := os.environ.get("CRUMB_CONFIG")) else None)
    from_file = _read_file(path) if path else _read_file(Path("crumb.toml"), optional=True)
    spelt = {name.upper() for name in os.environ}  # as pydantic reads it: in any case
    in_environment = {name for name in Settings.model_fields if f"CRUMB_{name.upper()}" in spelt}
    try:
        settings = Settings(**{k: v for k, v in from_file.items() if k not in in_environment} | given)
    except ValidationError as error:
        raise StartupError(f"these settings are not usable:\n{error_lines(error)}") from None
    except ValueError as error:  # an environment variable that should be JSON and is not
        raise StartupError(f"these settings are not usable: {error}") from None
    settings.check()
    return settings


def _read_file(path: Path, *, optional: bool = False) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if optional:
            return {}
        raise StartupError(f"there is no settings file at {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StartupError(f"{path} cannot be read: {error}") from None
