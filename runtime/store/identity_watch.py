"""Regular check that the servers still contain the store of this process.

A new connection checks this by itself. This task also notices a server that was emptied without a broken connection,
and logs a loss and its end once each. The metric of the store is 0 in between.
"""

from __future__ import annotations

from typing import Final

import anyio
import structlog

from breadcrumbs.runtime.errors import StoreError, StoreReplaced
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry.metrics import STORE_UP

_log = structlog.get_logger("breadcrumbs.store")

_CHECK_SECONDS: Final = 1.0


async def watch_identity(store: Store) -> None:
    """Check the identity of the store until cancelled."""
    lost = False
    while True:
        await anyio.sleep(_CHECK_SECONDS)
        try:
            await store.connection.verify()
        except StoreReplaced as error:
            if not lost:
                lost = True
                STORE_UP.set(0)
                _log.error(
                    "store replaced, nothing is written any more", reason=str(error), advice=error.advice
                )
        except StoreError:
            pass  # unavailable: those who need the store report it
        else:
            if lost:
                lost = False
                STORE_UP.set(1)
                _log.warning("store is back, continuing", store_id=store.identity)
