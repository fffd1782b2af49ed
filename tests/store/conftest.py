from __future__ import annotations

import pytest

# pytest explains failed assertions only in modules that it knows; these hold the tests of every backend.
for module in (
    "creating",
    "sessions",
    "idempotency",
    "updating",
    "deleting",
    "listing",
    "expiring",
    "importing",
):
    pytest.register_assert_rewrite(f"tests.store.contract.{module}")
for module in ("isolation", "opening"):
    pytest.register_assert_rewrite(f"tests.store.contract.{module}")
pytest.register_assert_rewrite("tests.store.keyspace")
