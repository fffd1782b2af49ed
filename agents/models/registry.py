"""Make a model from its name in the settings or in an agent definition.

    offline                             no key, no network
    openai:gpt-4.1-mini                 a provider and one of its models; openai/gpt-4.1-mini is the same
    openrouter/anthropic/claude-sonnet  the notation of RCRT
    http://127.0.0.1:8000/v1#my-model   any server with the chat completions API
    house-model                         an alias of the settings

The operator writes the settings. An agent definition can come from a client. It can name providers, endpoints and
aliases, but it cannot send prompts to other URLs, and it cannot contain a key.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from breadcrumbs.agents.models.base import Model
from breadcrumbs.agents.models.circuits import CircuitLimits, Circuits
from breadcrumbs.agents.models.endpoint import MODEL_SERVER, OMITTED, Endpoint, EndpointLimits
from breadcrumbs.agents.models.endpoint_registry import (
    EndpointName,
    EndpointRegistry,
    EndpointSettings,
    Seconds,
    shorten,
    validate_settings,
)
from breadcrumbs.agents.models.fallback import FallbackModel
from breadcrumbs.agents.models.offline import OfflineModel
from breadcrumbs.agents.models.openai_compatible import CallTraits, OpenAICompatibleModel
from breadcrumbs.agents.models.providers import OFFLINE, PRESETS, URL_FORM, Preset
from breadcrumbs.agents.models.table import PricePerMillion, WindowSize, table_in
from breadcrumbs.runtime.errors import InvalidInput, StartupError
from breadcrumbs.runtime.store.offered_models import MAX_MODEL_NAME

ModelName = Annotated[str, Field(min_length=1, max_length=MAX_MODEL_NAME)]

_RCRT_NAMES = {"ollama_local": "ollama"}


class ModelEndpointSettings(EndpointSettings):
    """Settings of one model server."""

    prompt_cache_key: bool | None = Field(
        None,
        description="Send a key per session, so that the provider finds the cached beginning of a prompt. "
        "Default: only to OpenAI, because other servers can refuse it",
    )


class ModelSettings(BaseModel):
    """The `models` section of the settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    default: str = Field(OFFLINE, description="The model of agents that do not name one")
    aliases: dict[str, str] = Field(
        default_factory=dict, description="Your own names for models, such as RCRT's llm_config ids"
    )
    endpoints: dict[EndpointName, ModelEndpointSettings] = Field(default_factory=dict)
    offered: Annotated[tuple[ModelName, ...], Field(max_length=100)] = Field(
        (), description="Models that a curator can choose for a session, besides the default and the aliases"
    )
    table: Path | None = Field(
        None,
        description="File with windows, prices and abilities of models, which is read again when it changes. "
        "config/models.toml in the package shows its form",
    )
    windows: Annotated[dict[str, WindowSize], Field(max_length=1_000)] = Field(
        default_factory=dict,
        description="Context windows of models in tokens, to show how full a prompt is. Well-known models need none",
    )
    prices: Annotated[dict[str, tuple[PricePerMillion, PricePerMillion]], Field(max_length=1_000)] = Field(
        default_factory=dict,
        description="Prices of a million input and output tokens, such as [0.4, 1.6], by model, to show costs",
    )
    connect_timeout: Seconds = EndpointLimits().connect
    read_timeout: Seconds = EndpointLimits().read
    total_timeout: Seconds = EndpointLimits().total
    retries: Annotated[int, Field(ge=0, le=10)] = EndpointLimits().retries
    max_retry_wait: Annotated[float, Field(ge=0, le=3600)] = EndpointLimits().max_wait
    max_answer_bytes: Annotated[int, Field(ge=1, le=64 << 20)] = EndpointLimits().max_text
    circuit_failures: Annotated[int, Field(ge=1, le=1_000)] = Field(
        CircuitLimits().failures,
        description="Failures in a row after which fallback lists skip a model for some time",
    )
    circuit_seconds: Seconds = Field(
        CircuitLimits().seconds,
        description="Seconds for which it is skipped. They double with each failed probe, up to 300",
    )
    offline_delay: Annotated[float, Field(ge=0, le=10)] = Field(
        0.0, description="Pause before each word, in seconds"
    )

    @property
    def limits(self) -> EndpointLimits:
        return EndpointLimits(
            connect=self.connect_timeout,
            read=self.read_timeout,
            total=self.total_timeout,
            max_text=self.max_answer_bytes,
            retries=self.retries,
            max_wait=self.max_retry_wait,
        )


class ModelPool:
    """Makes models that share one HTTP client per endpoint, and closes all clients together.

    The constructor validates the settings. The default model must exist and have its key.
    """

    def __init__(
        self,
        settings: ModelSettings | Mapping[str, Any] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = validate_settings(ModelSettings, settings, label="model settings")
        self._environment = os.environ if environment is None else environment
        self._table = table_in({"table": self._settings.table})
        self.circuits = Circuits(
            CircuitLimits(self._settings.circuit_failures, self._settings.circuit_seconds)
        )
        """Circuits of the models in fallback lists."""
        self._offline = OfflineModel(delay=self._settings.offline_delay)
        for name, endpoint in self._settings.endpoints.items():
            if name == OFFLINE:
                raise StartupError(f"a model endpoint cannot have the name {OFFLINE!r}: rename it")
            if endpoint.url is None and name not in PRESETS:
                raise StartupError(f"the model endpoint {name!r} needs a url")
        urls = {name: self._url_of(name) for name in (*self._settings.endpoints, *PRESETS)}
        self._endpoints = EndpointRegistry(MODEL_SERVER, urls, self._open_endpoint, self._settings.limits)
        try:
            self.default: Model = self._resolve(self._settings.default, trusted=True)
            for name in (*self._settings.aliases, *self._settings.offered):
                self._resolve(name.strip(), trusted=True, check_only=True)
        except InvalidInput as error:
            raise StartupError(f"invalid model settings: {error}") from None

    @property
    def names(self) -> list[str]:
        """Names of models, and prefixes of names such as `openai:…`."""
        providers = sorted({*PRESETS, *self._settings.endpoints})
        return [OFFLINE, *sorted(self._settings.aliases), *(f"{provider}:…" for provider in providers)]

    @property
    def default_spec(self) -> str:
        """The default model, as the settings name it."""
        return self._settings.default.strip()

    @property
    def offered(self) -> tuple[str, ...]:
        """The models that the settings offer besides the default and the aliases."""
        return tuple(name.strip() for name in self._settings.offered)

    @property
    def aliases(self) -> dict[str, str]:
        """The aliases of the settings."""
        return dict(self._settings.aliases)

    @property
    def endpoint_urls(self) -> dict[str, str]:
        """The endpoints of the settings, with their URLs."""
        return {name: self._url_of(name) for name in sorted(self._settings.endpoints)}

    def meaning(self, spec: str) -> str:
        """Return the model that a name stands for. Aliases are replaced."""
        spec = spec.strip()
        for _ in self._settings.aliases:
            spec = self._settings.aliases.get(spec, spec).strip()
        return spec

    def key_env(self, spec: str | None) -> str:
        """Return the environment variable of the key that a model needs, or an empty string."""
        spec = self.meaning(spec or self._settings.default)
        if spec == OFFLINE or "://" in spec:
            return ""
        provider, _ = self._split_spec(spec)
        settings = self._settings.endpoints.get(provider, ModelEndpointSettings())
        if settings.key_env or settings.url is not None:
            return settings.key_env or ""
        return PRESETS[provider].key_env

    def resolve_list(self, specs: Sequence[str], *, trusted: bool = False) -> Model:
        """Return the models of a definition as one model for one turn. Without names, return the default model.

        Raises like `resolve`, also if only one of several models cannot be used. All models but the last are retried
        at most once: the next model answers sooner.
        """
        if len(specs) < 2:
            return self.resolve(specs[0] if specs else None, trusted=trusted)
        last = len(specs) - 1
        models = [
            self._resolve(spec.strip(), trusted=trusted, max_retries=None if number == last else 1)
            for number, spec in enumerate(specs)
        ]
        return FallbackModel(models, self.circuits)

    def resolve(self, spec: str | None, *, trusted: bool = False) -> Model:
        """Return the model with this name. Without a name, return the default model.

        Raises `InvalidInput` with a list of models if the name is unknown, and `StartupError` if a key is missing.
        `trusted` is for names that the operator wrote. Only these may be URLs that are not in the settings.
        """
        if spec is None or not spec.strip():
            return self.default
        return self._resolve(spec.strip(), trusted=trusted)

    async def close(self) -> None:
        await self._endpoints.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _resolve(
        self, spec: str, *, trusted: bool, check_only: bool = False, max_retries: int | None = None
    ) -> Model:
        followed: list[str] = []
        while spec in self._settings.aliases:
            if spec in followed:
                raise InvalidInput(
                    f"the model aliases {' → '.join([*followed, spec])} form a cycle", where="model"
                )
            followed.append(spec)
            spec, trusted = self._settings.aliases[spec].strip(), True
        if spec == OFFLINE:
            return self._offline
        if "://" in spec:
            return self._by_url(spec, trusted=trusted, max_retries=max_retries)
        provider, model = self._split_spec(spec)
        if check_only:  # the key of an unused alias may be missing
            return self._offline
        return self._open_model(provider, model, max_retries)

    def _split_spec(self, spec: str) -> tuple[str, str]:
        ends = [position for position in (spec.find(":"), spec.find("/")) if position > 0]
        provider = spec[: min(ends)].lower() if ends else spec.lower()
        provider = provider if provider in self._settings.endpoints else _RCRT_NAMES.get(provider, provider)
        if provider not in PRESETS and provider not in self._settings.endpoints:
            raise InvalidInput(
                f"model {shorten(spec)!r} not found. {self._spec_advice(spec, provider)}", where="model"
            )
        model = spec[min(ends) + 1 :].strip() if ends else ""
        if not model:
            raise InvalidInput(
                f"{shorten(spec)!r} is a provider without a model: write {provider}:<model>", where="model"
            )
        return provider, model

    def _spec_advice(self, spec: str, provider: str) -> str:
        usage = f"Use {', '.join(self.names)} or {URL_FORM}"
        names = [OFFLINE, *self._settings.aliases, *PRESETS, *self._settings.endpoints]
        close = difflib.get_close_matches(provider, names, n=1, cutoff=0.75)
        if close:
            return f"Did you mean {close[0]}? {usage}"
        if "/" in spec and ":" not in spec.partition("/")[0]:
            return f"OpenRouter's models are written openrouter/{shorten(spec)}. {usage}"
        return usage

    def _by_url(self, spec: str, *, trusted: bool, max_retries: int | None) -> Model:
        address, _, model = spec.partition("#")
        if not model:
            raise InvalidInput(f"the URL has no model: write {URL_FORM}", where="model")
        provider, endpoint = self._endpoints.find(address, trusted=trusted)
        if provider is not None:
            return self._open_model(provider, model, max_retries)
        name = f"{endpoint.url}#{model}"
        return OpenAICompatibleModel(
            model, endpoint, shares_endpoint=True, traits=self._traits(name, max_retries)
        )

    def _open_model(self, provider: str, model: str, max_retries: int | None) -> Model:
        name = f"{provider}:{model}"
        return OpenAICompatibleModel(
            model,
            self._endpoints.get(provider),
            name=name,
            shares_endpoint=True,
            traits=self._traits(name, max_retries),
        )

    def _traits(self, name: str, max_retries: int | None) -> CallTraits:
        retries = self._settings.retries if max_retries is None else max_retries
        return CallTraits(retries, self._table.accepts_images(name))

    def _url_of(self, provider: str) -> str:
        settings = self._settings.endpoints.get(provider)
        return MODEL_SERVER.parse_url(settings.url if settings and settings.url else PRESETS[provider].url)

    def _open_endpoint(self, provider: str) -> Endpoint:
        settings = self._settings.endpoints.get(provider, ModelEndpointSettings())
        preset = PRESETS.get(provider, Preset(url="", key_env="", needs_key=False))
        # If a preset has another URL, the key of the provider must not be sent to that URL.
        is_providers_own = settings.url is None or self._url_of(provider) == preset.url
        key_env = settings.key_env or (preset.key_env if is_providers_own else "")
        key = settings.read_key(self._environment, key_env)
        if key is None and (settings.key_env or (preset.needs_key and is_providers_own)):
            raise StartupError(
                f"{provider} needs a key, and {key_env} is not set. Set it in the environment of the process "
                f"that runs the agents, or use a model without a key: {OFFLINE}, ollama:<model>"
            )
        return Endpoint(
            self._url_of(provider),
            key=key,
            limits=self._settings.limits,
            streaming=settings.streaming,
            omit=_omitted_fields(settings, preset if is_providers_own else None),
        )


def resolve_model(
    spec: str,
    settings: ModelSettings | Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Model:
    """Return a model with its own connections, which its `close` closes.

    The name is trusted, so it must come from the operator. For names from agent definitions, use a `ModelPool`.
    """
    model = ModelPool(settings, environment=environment).resolve(spec, trusted=True)
    if isinstance(model, OpenAICompatibleModel):
        return OpenAICompatibleModel(model.model, model.endpoint, name=model.name)
    return model


def _omitted_fields(settings: ModelEndpointSettings, preset: Preset | None) -> set[str]:
    """Return the optional request fields that are not sent. `preset` is None for a server of somebody else."""
    omitted = set(OMITTED)
    accepts_cache_key = preset is not None and preset.accepts_cache_key
    if accepts_cache_key if settings.prompt_cache_key is None else settings.prompt_cache_key:
        omitted.remove("prompt_cache_key")
    if preset is not None and preset.prefers_max_completion_tokens:
        omitted.add("max_tokens")
    return omitted
