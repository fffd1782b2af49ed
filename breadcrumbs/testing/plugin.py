"""The pytest plugin. pytest loads it in every run, so this module imports nothing of Breadcrumbs at the top."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from breadcrumbs.composition.temporary_servers import TemporaryServer
    from breadcrumbs.testing.crumbs import Crumbs


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("breadcrumbs").addoption(
        "--update-recordings",
        action="store_true",
        help="Write the actual prompts and answers into recorded conversations.",
    )


@pytest.fixture(scope="session")
def crumb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporaryServer]:
    """A temporary Breadcrumbs server, shared by all tests of a process. Each test has its own owner there."""
    from breadcrumbs.composition.temporary_servers import temporary_server

    with temporary_server(tmp_path_factory.mktemp("breadcrumbs")) as server:
        yield server


@pytest.fixture
def crumbs(crumb_server: TemporaryServer, request: pytest.FixtureRequest) -> Iterator[Crumbs]:
    """Runs agents on the temporary server and talks to them. No data of other tests is visible."""
    from breadcrumbs.testing.crumbs import open_crumbs

    with open_crumbs(crumb_server, request.path.parent, request.config.rootpath) as opened:
        opened.updates_recordings = request.config.getoption("--update-recordings", default=False)
        yield opened
