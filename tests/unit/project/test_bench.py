"""What the benchmarks know of the store, without which they measure nothing."""

from __future__ import annotations

from bench._common import CreateCommand, posted
from breadcrumbs.runtime.backend.connection import Script


async def test_the_command_that_a_create_sends_can_be_sent_again_with_another_id() -> None:
    command = await CreateCommand.of(posted("s"))
    first, second = command.arguments(), command.arguments()
    assert first[:2] == second[:2] == (b"EVALSHA", Script("create", inside="deletions").sha)
    assert first != second
