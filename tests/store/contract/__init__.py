"""The contract of the store. A backend is a subclass that adds how to open it; see `base.Contract`."""

from __future__ import annotations

from tests.store.contract.archive import Archiving
from tests.store.contract.backup import Backup
from tests.store.contract.bounds import Bounds
from tests.store.contract.creating import Creating
from tests.store.contract.deleting import Deleting
from tests.store.contract.expiring import Expiring
from tests.store.contract.idempotency import Idempotency
from tests.store.contract.importing import Importing
from tests.store.contract.isolation import Isolation
from tests.store.contract.listing import Listing
from tests.store.contract.opening import Opening
from tests.store.contract.quotas import WithQuotas
from tests.store.contract.reducing import Reducing
from tests.store.contract.running_answers import RunningAnswers
from tests.store.contract.session_life import SessionLife
from tests.store.contract.sessions import Sessions
from tests.store.contract.spending import SpendingUsage
from tests.store.contract.updating import Updating


class StoreContract(
    Creating,
    Sessions,
    SessionLife,
    RunningAnswers,
    Idempotency,
    Updating,
    Deleting,
    Listing,
    Expiring,
    Importing,
    Isolation,
    Opening,
    Bounds,
    WithQuotas,
    SpendingUsage,
    Archiving,
    Reducing,
    Backup,
):
    """All of it."""
