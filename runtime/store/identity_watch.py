"""Regular check that the servers still contain the store of this process.

A new connection checks this by itself. This task also notices a server that was emptied without a broken connection.
`STORE_CALLS` logs a loss and its end once each.
"""

from __future__ import annotations

from typing import Final

import anyio

from breadcrumbs.runtime.errors import StoreError, StoreReplaced
from breadcrumbs.runtime.store.store import Store
from breadcrumbs.runtime.telemetry.store_calls import STORE_CALLS

_CHECK_SECONDS: Final = 1.0


async def watch_identity(store: Store) -> None:
    """Check the identity of the store until cancelled."""
    while True:
        await anyio.sleep(_CHECK_SECONDS)
        try:
            await store.connection.verify()
        except StoreReplaced as error:
            STORE_CALLS.replaced(error)
        except StoreError:
            pass  # unavailable: `STORE_CALLS` has counted it
        else:
            STORE_CALLS.verified()
