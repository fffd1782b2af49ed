"""Models that the agent runners offer, published in lane 0.

The processes that serve the API have no model settings of their own. So each agent runner publishes its list at its
start, and the last one of a kind wins: runners of one kind must have the same settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from breadcrumbs.runtime.store.store import Store

MAX_MODEL_NAME: Final = 300

_MAIN_KIND: Final = "agents"
"""Kind of the workers that run the agents of the settings."""


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A model that a session can use."""

    name: str
    """Name by which a session chooses it: an alias, or the model itself."""
    model: str
    """The model that the name stands for, without the URL of its server."""
    problem: str | None = None
    """Reason why it cannot be used now, such as a missing key."""


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """The models of an agent runner. `default` is the name of the model of sessions without a choice."""

    default: str | None = None
    models: tuple[OfferedModel, ...] = ()

    def find(self, name: str) -> OfferedModel | None:
        return next((model for model in self.models if model.name == name), None)


async def publish_models(store: Store, kind: str, offer: ModelOffer, *, if_absent: bool = False) -> None:
    """Publish the models of a kind of worker. `if_absent`: keep a list that is already published."""
    command = b"HSETNX" if if_absent else b"HSET"
    await store.connection.call(
        0, command, store.keys.offered_models(), kind.encode(), orjson.dumps(asdict(offer))
    )


async def read_models(store: Store) -> ModelOffer:
    """Return the published models. The list of the main kind takes precedence over those of other kinds."""
    flat = await store.connection.call(0, b"HGETALL", store.keys.offered_models())
    offers = {kind.decode(): _decode(raw) for kind, raw in zip(flat[::2], flat[1::2], strict=True)}
    if _MAIN_KIND in offers:
        return offers[_MAIN_KIND]
    models = {model.name: model for _, offer in sorted(offers.items()) for model in offer.models}
    default = next((offer.default for _, offer in sorted(offers.items())), None)
    return ModelOffer(default, tuple(models.values()))


def _decode(raw: bytes) -> ModelOffer:
    document: Mapping[str, Any] = orjson.loads(raw)
    return ModelOffer(
        document["default"],
        tuple(
            OfferedModel(model["name"], model["model"], model.get("problem")) for model in document["models"]
        ),
    )
