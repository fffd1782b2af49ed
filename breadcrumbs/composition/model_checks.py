"""Checks a model as the settings configure it, without a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from breadcrumbs.agents.models.check import Finding, ModelCheck, check_model
from breadcrumbs.agents.models.providers import OFFLINE
from breadcrumbs.agents.models.registry import ModelPool
from breadcrumbs.composition.event_loop import run_async
from breadcrumbs.composition.logs import configure_logs
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.settings.settings import Settings


def run_model_check(
    settings: Settings, spec: str | None, *, timeout: float, on_step: Callable[[str], None] | None = None
) -> ModelCheck:
    """Try a model, by default the model of the settings.

    Raise `InvalidInput` if the name is invalid, and `StartupError` if the settings are.
    """
    configure_logs(settings)
    return run_async(_check(settings, spec, timeout, on_step))


def default_model(settings: Settings) -> str:
    """Return the model of agents that name none."""
    return settings.model or settings.models.get("default") or OFFLINE


def open_models(settings: Settings) -> ModelPool:
    """Return the models of the settings. The key of the default model may be missing."""
    return ModelPool({**settings.models, "default": OFFLINE})


def pool_for_checks(settings: Settings, limits: Mapping[str, float]) -> ModelPool:
    """Return the models of the settings with other time limits, without retries. Keys may be missing."""
    return ModelPool({**settings.models, **limits, "retries": 0, "default": OFFLINE})


async def _check(
    settings: Settings, spec: str | None, timeout: float, on_step: Callable[[str], None] | None
) -> ModelCheck:
    limits = {
        "total_timeout": timeout,
        "read_timeout": timeout,
        "connect_timeout": min(5.0, timeout),
    }
    wanted = spec or default_model(settings)
    async with pool_for_checks(settings, limits) as pool:
        try:
            model = pool.resolve(wanted, trusted=True)
        except StartupError as error:
            advice = f"Get a key from the provider, then: export {pool.key_env(wanted)}=…"
            return ModelCheck(wanted, problem=Finding("key missing", str(error), advice))
        return await check_model(model, key_env=pool.key_env(wanted), on_step=on_step)
