"""Publishes the models and agents of a worker for other processes, and the claims of a user's program."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import anyio

from breadcrumbs.agents.other_agents import REFRESH_SECONDS, OtherAgents, end_claims, extend_claims
from breadcrumbs.runtime.errors import StoreError
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.store.offered_models import ModelOffer, publish_models
from breadcrumbs.runtime.store.published_agents import (
    RUNNERS,
    Claims,
    PublishedAgent,
    living_kinds,
    publish_agents,
    read_publication,
    read_publications,
)
from breadcrumbs.runtime.store.store import Store

_RENEWAL_SECONDS: Final = 5.0
"""Time between two checks of the publication. Much less than `CLAIM_LENGTH`."""


@dataclass(frozen=True, slots=True)
class Publishing:
    """Models, agents and tools that a worker publishes for other processes."""

    store: Store
    kind: str
    models: ModelOffer
    agents: Sequence[PublishedAgent]
    settings: Settings
    tools: tuple[str, ...]

    async def publish(self) -> None:
        """Publish everything. A program also claims messages from now on."""
        await publish_models(self.store, self.kind, self.models)
        if self._is_program:
            await self._write(extend_claims(await self._claims(), self.store.now()))
        else:
            await self._write()

    async def keep(self, others: OtherAgents) -> None:
        """Read the agents of others regularly, and renew the publication, until cancelled."""
        renewed = time.monotonic()
        while True:
            await anyio.sleep(REFRESH_SECONDS)
            try:
                if time.monotonic() - renewed > _RENEWAL_SECONDS:
                    renewed = time.monotonic()
                    await self._renew()
                await others.refresh()
            except StoreError:
                pass  # repeated soon

    async def withdraw(self) -> None:
        """End the claims of a program that stops, unless another process runs it, too."""
        if not self._is_program:
            return
        try:
            if not await living_kinds(self.store, [self.kind]):
                await self._write(end_claims(await self._claims(), self.store.now()))
        except StoreError:
            pass  # the claims end by themselves

    @property
    def _is_program(self) -> bool:
        return self.kind != RUNNERS

    async def _renew(self) -> None:
        """Renew the claims of a program, or publish again if the publication is gone: a backup was restored.

        A publication of another runner is not replaced: during an update, two versions would replace each other.
        """
        await publish_models(self.store, self.kind, self.models, if_absent=True)
        if self._is_program:
            await self._write(extend_claims(await self._claims(), self.store.now()))
        else:
            await self._write(if_absent=True)

    async def _claims(self) -> Claims:
        published = await read_publication(self.store, self.kind)
        return published.agents[0].claims if published.agents else ()

    async def _write(self, claims: Claims = (), *, if_absent: bool = False) -> None:
        await publish_agents(
            self.store,
            self.kind,
            [replace(agent, claims=claims) for agent in self.agents],
            answering=None if self._is_program else self.settings.answering,
            tools=self.tools,
            if_absent=if_absent,
        )


async def wait_for_claims(store: Store, kinds: Iterable[str]) -> None:
    """Wait until programs have claimed the messages that are stored from now on.

    Until then, other agents that match answer. Without other agents there is nothing to wait for.
    """
    published, own = (await read_publications(store)).by_kind, set(kinds)
    if not any(agent.answers for kind, one in published.items() if kind not in own for agent in one.agents):
        return
    begins = [
        agent.claims[-1][0]
        for kind in own & published.keys()
        for agent in published[kind].agents
        if agent.answers and agent.claims
    ]
    await anyio.sleep(max(0, max(begins, default=0) - store.now()) / 1_000_000)
