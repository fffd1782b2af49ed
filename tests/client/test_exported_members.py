"""The public names of the package, and the cost of importing it."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import breadcrumbs
from breadcrumbs import AsyncClient, AsyncSession, Client, Session
from breadcrumbs.client import errors
from breadcrumbs.runtime import errors as runtime_errors
from tests.support.sync_client import CLIENT, sync_sources


@pytest.mark.parametrize("name", breadcrumbs.__all__)
def test_every_exported_name_exists_and_is_documented(name: str) -> None:
    value = getattr(breadcrumbs, name)
    assert name == "__version__" or inspect.getdoc(value)


def test_no_other_name_is_public() -> None:
    for name in breadcrumbs.__all__:
        getattr(breadcrumbs, name)
    found = {name for name, value in vars(breadcrumbs).items() if not isinstance(value, ModuleType)}
    assert {name for name in found if not name.startswith("_")} == set(breadcrumbs.__all__) - {"__version__"}
    assert dir(breadcrumbs) == sorted(breadcrumbs.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        breadcrumbs.nonsense  # noqa: B018 - that it raises is the point


def test_type_checkers_see_the_same_objects_as_python(tmp_path: Path) -> None:
    """The imports for type checkers are a separate list. Both lists must lead to the same objects."""
    source = Path(breadcrumbs.__file__).read_text("utf-8")
    body = source.partition("TYPE_CHECKING:\n")[2].partition("__version__")[0]
    seen: dict[str, object] = {}
    exec(inspect.cleandoc(body), seen)
    seen.pop("__builtins__")
    assert seen.keys() == set(breadcrumbs.__all__) - {"__version__"}
    for name, value in seen.items():
        assert value is getattr(breadcrumbs, name), name


def test_importing_the_package_loads_no_heavy_modules() -> None:
    check = (
        "import sys, breadcrumbs;"
        "print(sorted({'httpx', 'pydantic', 'anyio', 'redis', 'rich', 'orjson', 'asyncio'} & set(sys.modules)));"
        "print(sorted(name for name in sys.modules if name.startswith('breadcrumbs.')))"
    )
    ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ended.stdout.split("\n")[:2] == ["[]", "[]"]


def test_importing_the_client_loads_no_server_modules() -> None:
    check = (
        "import sys, breadcrumbs.client.aio, breadcrumbs.client.sync;"
        "print(sorted({'redis', 'starlette', 'uvicorn', 'cryptography', 'pydantic'} & set(sys.modules)));"
        "print(any(name.startswith('breadcrumbs.runtime.store.store') for name in sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ended.stdout.split("\n")[:2] == ["[]", "False"]


def test_importing_the_package_takes_less_than_30_ms() -> None:
    check = (
        "import time, typing; began = time.perf_counter(); import breadcrumbs;"
        "print(time.perf_counter() - began)"
    )
    took = [
        float(
            subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout
        )
        for _ in range(5)
    ]
    assert min(took) < 0.030


@pytest.mark.parametrize(("synchronous", "asynchronous"), [(Client, AsyncClient), (Session, AsyncSession)])
def test_both_clients_have_the_same_methods_with_the_same_parameters(
    synchronous: type, asynchronous: type
) -> None:
    for kind in (synchronous, asynchronous):
        assert not [name for name in vars(kind) if name.startswith("a") and not hasattr(synchronous, name)]

    def methods(kind: type) -> dict[str, list[tuple[str, object, object]]]:
        return {
            name: [
                (parameter.name, parameter.kind, parameter.default)
                for parameter in inspect.signature(method).parameters.values()
            ]
            for name, method in vars(kind).items()
            if callable(method) and not name.startswith("_")
        }

    assert methods(synchronous) == methods(asynchronous)
    assert methods(synchronous)


def test_an_error_is_a_subclass_of_the_runtime_error_with_its_name() -> None:
    shared = 0
    for name in errors.__all__:
        ours = getattr(errors, name)
        if isinstance(ours, type) and hasattr(runtime_errors, name):
            assert issubclass(ours, getattr(runtime_errors, name))
            shared += 1
        if isinstance(ours, type):
            assert issubclass(ours, breadcrumbs.BreadcrumbsError)
            assert getattr(breadcrumbs, name) is ours
    assert shared >= 10


def test_the_modules_of_the_exported_names_can_be_imported() -> None:
    for module in breadcrumbs._MODULE_NAMES:
        importlib.import_module(module)


def test_the_sync_client_is_generated_from_the_async_one() -> None:
    """Run `python -m tests.support.sync_client` if this test fails."""
    generated = sync_sources()
    assert set(generated) == set((CLIENT / "sync").glob("*.py"))
    for path, text in generated.items():
        assert path.read_text("utf-8") == text, path.name
