"""Fixtures: a `crumb up` that can be restarted, and the import of the OpenAI Agents SDK."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from uuid import uuid4

import pytest

from tests.client.support import CrumbUp

ROOT = Path(__file__).resolve().parents[2]


def openai_sdk() -> ModuleType:
    """Import the package `agents` of openai-agents.

    The repository has a folder of the same name, which is imported only as `breadcrumbs.agents`. It is removed from
    the import path here.
    """
    path = sys.path[:]
    sys.path[:] = [place for place in path if Path(place or ".").resolve() != ROOT]
    try:
        sdk = import_module("agents")
    finally:
        sys.path[:] = path
    assert ROOT not in Path(str(sdk.__file__)).resolve().parents[:2]
    return sdk


openai_sdk().set_tracing_disabled(True)


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrumbUp]:
    with CrumbUp(tmp_path_factory.mktemp("up")) as running:
        yield running


@pytest.fixture
def name() -> str:
    """Name of an unused session."""
    return f"s-{uuid4()}"
