"""Fixtures every test may ask for. Servers start when a test first asks, one of each kind per xdist worker.

They are shared: a test that needs an empty server empties it itself.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from typing import Any

import orjson
import pytest
import structlog
from hypothesis import settings

from breadcrumbs.runtime.backend.embedded import EmbeddedServer
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.store import record
from breadcrumbs.runtime.store.write_cache import WriteCache
from tests.support.servers import Cluster, Server, redis_binary
from tests.support.supervisor import restore_interrupts

# Tests send Ctrl-C to the programs that they start. Those inherit an ignored SIGINT.
restore_interrupts()

# pytest rewrites assertions only in registered modules. These contain the tests of every backend.
pytest.register_assert_rewrite("tests.store.contract", "tests.store.keyspace")

# No deadlines: an example that talks to a server takes as long as a busy machine makes it take.
settings.register_profile("default", max_examples=60, deadline=None)
settings.register_profile("ci", max_examples=300, deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude imported objects from garbage collection.

    They live until the end: half a million objects, whose scans would take a tenth of the whole run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


@pytest.fixture(scope="session", autouse=True)
def uncached_loggers() -> Iterator[None]:
    """A logger that is cached with the configuration of one test would ignore `capture_logs` in all later tests."""
    configure = structlog.configure

    def configure_uncached(**options: Any) -> None:
        configure(**options | {"cache_logger_on_first_use": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", configure_uncached)
        yield


@pytest.fixture(autouse=True)
def own_log_configuration() -> Iterator[None]:
    """The configuration of one test, also that of `capture_logs`, must not apply to the next one."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def own_data_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes remember the stores of servers in the data directory. The ports of test servers are used again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data-home")))
        yield


@pytest.fixture(scope="session", autouse=True)
def nobody_changes_what_was_read() -> Iterator[None]:
    """Readers of the same version share one object. Check at the end that no test modified one."""
    given: dict[int, Breadcrumb] = {}
    remembered, put = record._decode_cached, WriteCache.put

    def keep(crumb: Breadcrumb) -> None:
        if len(given) < 50_000:
            given[id(crumb)] = crumb  # once: most are read again and again

    def noted(*version: bytes) -> Breadcrumb:
        crumb = remembered(*version)
        keep(crumb)
        return crumb

    def put_and_keep(cache: WriteCache, crumb: Breadcrumb, *, permanent: bool) -> None:
        put(cache, crumb, permanent=permanent)
        keep(crumb)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "_decode_cached", noted)
        patch.setattr(WriteCache, "put", put_and_keep)
        yield
    parsed = [crumb for crumb in given.values() if "document" in crumb.__dict__]
    changed = [(crumb.document, crumb.json) for crumb in parsed if crumb.document != orjson.loads(crumb.json)]
    assert not changed, f"written as what reads differently, or changed by somebody since: {changed[:3]}"


@pytest.fixture(scope="session")
def embedded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("embedded") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def standalone_server() -> Iterator[Server]:
    """The redis-server of the system where there is one, so that we are not tested on Valkey alone."""
    with Server(binary=redis_binary()) as server:
        yield server


@pytest.fixture(scope="session", params=["valkey", "redis"])
def every_standalone_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The test runs on Valkey, and again on the redis-server of the system."""
    binary = None
    if request.param == "redis":
        binary = redis_binary()
        if binary is None:
            pytest.skip("no redis-server on this system (Debian: apt-get install redis-server)")
    with Server(binary=binary) as server:
        yield server


@pytest.fixture(scope="session")
def cluster_server() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster
