"""Models that a curator can choose for a session: the default model, the aliases and `offered` of the settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from breadcrumbs.agents.models.base import Model
from breadcrumbs.agents.models.names import public_name
from breadcrumbs.agents.models.registry import ModelPool
from breadcrumbs.runtime.errors import InvalidInput, StartupError
from breadcrumbs.runtime.store.offered_models import ModelOffer, OfferedModel

__all__ = ["ModelChoices", "public_name"]

_MAX_PROBLEM: Final = 300


class ModelChoices:
    """The models of a pool by their public names."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool
        self._specs: dict[str, str] = {}
        for spec in (pool.default_spec, *sorted(pool.aliases), *pool.offered):
            name = public_name(spec)
            if self._specs.setdefault(name, spec) != spec:
                raise StartupError(
                    f"two offered models have the name {name!r}: give one of them an alias in [models.aliases]"
                )

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    @property
    def specs(self) -> tuple[str, ...]:
        """The models as the settings name them."""
        return tuple(self._specs.values())

    def resolve(self, name: str) -> Model:
        """Return the chosen model. Raise `InvalidInput` if it is not offered, and `StartupError` without its key."""
        if name not in self._specs:
            raise InvalidInput(
                f"the model {name!r} of this session is no longer offered: choose another model for the session, or "
                "add it to the setting models.offered",
                where="model",
            )
        return self._pool.resolve(self._specs[name], trusted=True)

    def offer(self, default: str | None = None) -> ModelOffer:
        """Return the list to publish. `default` is the model that all agents name, if they agree on one."""
        names = list(self._specs)
        known = default if default is None else public_name(default)
        return ModelOffer(known or names[0], tuple(self._offered(name) for name in names))

    def _offered(self, name: str) -> OfferedModel:
        model, problem = public_name(self._pool.meaning(self._specs[name])), None
        try:
            self._pool.resolve(self._specs[name], trusted=True)
        except (InvalidInput, StartupError) as error:
            problem = str(error)[:_MAX_PROBLEM]
        return OfferedModel(name, model, problem)
