"""Internals of the store that the benchmarks depend on."""

from __future__ import annotations

from bench._common import CreateCommand, posted
from breadcrumbs.runtime.backend.connection import Script


async def test_the_recorded_create_command_can_be_repeated_with_another_id() -> None:
    command = await CreateCommand.of(posted("s"))
    first, second = command.arguments(), command.arguments()
    assert first[:2] == second[:2] == (b"EVALSHA", Script("create", inside="deletions").sha)
    assert first != second
