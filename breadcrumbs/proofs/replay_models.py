"""Finds the model of a replay among the models of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from breadcrumbs.agents.models.base import Model
from breadcrumbs.agents.models.offered import ModelChoices, public_name
from breadcrumbs.agents.models.prices import Price
from breadcrumbs.agents.models.registry import ModelPool
from breadcrumbs.agents.tools.base import Toolbox
from breadcrumbs.proofs.replay import Changes, ReplayPrompt, ToolSpecs
from breadcrumbs.runtime.errors import InvalidInput, StartupError


class ReplayModels:
    """The models, their prices and the tools of a process. `configured` are models that the operator's agents name.

    `toolbox` is called only when the schema of a tool is needed, because it imports the tools.
    """

    def __init__(
        self,
        pool: ModelPool,
        toolbox: Callable[[], Toolbox],
        configured: Iterable[str] = (),
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self.prices: Mapping[str, Price] = prices or {}
        self._pool = pool
        self._toolbox = toolbox
        self._choices = ModelChoices(pool)
        self._trusted = (*self._choices.specs, *configured)

    def resolve(self, spec: str | None) -> Model:
        """Return a model by a name that any client may use. None: the default model."""
        return self._pool.resolve(spec)

    def toolbox(self) -> Toolbox:
        return self._toolbox()

    @property
    def tool_specs(self) -> ToolSpecs:
        return lambda names: self._toolbox().allowed(names).specs

    def choose(
        self, prompt: ReplayPrompt, wanted: str | None, changes: Changes, *, trusted: bool = False
    ) -> Model:
        """Return the wanted model, by default that of the changed definition or of the original answer.

        Raise `InvalidInput` if it is unknown, and `StartupError` if its key is missing. With `trusted`, the operator
        wrote the name, so it may be any model. Otherwise it must be one of the offered models.
        """
        if wanted is not None:
            return self._wanted(wanted, trusted=trusted)
        if changes.definition is not None and changes.definition.models:
            return self._pool.resolve_list(changes.definition.models, trusted=trusted)
        return self._original(prompt.model)

    def _wanted(self, name: str, *, trusted: bool) -> Model:
        if name in self._choices:
            return self._choices.resolve(name)
        if trusted:
            return self._pool.resolve(name, trusted=True)
        raise InvalidInput(
            f"this model is not offered. Offered models: {', '.join(self._choices)}", where="model"
        )

    def _original(self, recorded: str) -> Model:
        """Return the model of the original answer. A receipt has no URL, so URLs come from the settings."""
        if not recorded:
            return self._pool.default
        for spec in self._trusted:
            try:
                model = self._pool.resolve(spec, trusted=True)
            except (InvalidInput, StartupError):
                continue
            if public_name(model.name) == recorded:
                return model
        try:
            return self._pool.resolve(recorded)
        except InvalidInput:
            raise InvalidInput(
                f"the model {recorded!r} of this answer is not configured here: choose another model",
                where="model",
            ) from None
