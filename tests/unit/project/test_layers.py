"""The layers of the code base: packages import only packages below them, and Redis is used only inside the runtime."""

from __future__ import annotations

import ast
import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
PACKAGES: Final = ("agents", "breadcrumbs", "config", "context_builder", "runtime", "typings")

MAY_USE_REDIS: Final = (
    "runtime/backend/",
    "runtime/store/",
    "runtime/events/",
    "runtime/access/rate_limits.py",
    "runtime/maintenance/checks/",
    "runtime/workers/leases.py",
    "runtime/workers/liveness.py",
)
"""Modules that may send commands, spell keys or compute lanes."""

REDIS_ATTRIBUTES: Final = ("connection", "keys", "lanes")
REDIS_MODULES: Final = (
    "breadcrumbs.runtime.backend.connection",
    "breadcrumbs.runtime.backend.link",
    "breadcrumbs.runtime.backend.standalone",
    "breadcrumbs.runtime.backend.cluster",
    "breadcrumbs.runtime.store.keys",
)


SURFACES: Final = (
    *(
        f"breadcrumbs.runtime.{name}"
        for name in (
            "access", "backend", "breadcrumb", "events", "hints", "http", "http.api", "http.middleware",
            "http.processes", "http.routes",
            "maintenance", "retrieval", "sessions", "settings", "store", "streams", "telemetry",
            "workers",
        )
    ),
    "breadcrumbs.agents",
    "breadcrumbs.agents.models",
    "breadcrumbs.agents.remote_adk",
    "breadcrumbs.composition",
    "breadcrumbs.context_builder",
    "breadcrumbs.context_builder.http",
    "breadcrumbs.proofs",
)  # fmt: skip
"""Packages whose `__all__` lists the modules that other packages may import."""


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter. It finds the packages through the links under `typings`, as type checkers do."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    return subprocess.run(
        [*command, "--config", str(root / "pyproject.toml"), "--no-cache"],
        cwd=root / "typings",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_each_layer_imports_only_the_layers_below_it() -> None:
    checked = lint_imports(ROOT)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    "violation",
    [
        "from breadcrumbs.runtime.workers.worker import Worker\n",
        "def later() -> None:\n    import breadcrumbs.agents.runner\n",
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from breadcrumbs.runtime.events.log import EventLog\n",
    ],
    ids=["at the top", "inside a function", "for type checkers"],
)
def test_an_import_from_a_lower_layer_into_a_higher_one_is_found(tmp_path: Path, violation: str) -> None:
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "__init__.py").touch()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "runtime" / "store" / "violation.py").write_text(violation)
    checked = lint_imports(tmp_path)
    assert checked.returncode == 1
    assert "breadcrumbs.runtime.store.violation" in checked.stdout


def test_packages_import_only_public_modules_of_others() -> None:
    found = []
    for path in sorted(_modules()):
        module = _module_name(path)
        for line, name in _imported_names(ast.parse(path.read_text())):
            for package in _packages_of(name):
                part = name.removeprefix(f"{package}.").split(".")[0]
                outside = not f"{module}.".startswith(f"{package}.")
                if outside and part not in importlib.import_module(package).__all__:
                    found.append(f"{path.relative_to(ROOT)}:{line}: {name} is private to {package}")
    assert not found, "\n".join(found)


def test_redis_is_used_only_below_the_interfaces_of_the_runtime() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in sorted(_modules())
        if not path.relative_to(ROOT).as_posix().startswith(MAY_USE_REDIS)
        for line, what in _redis_uses(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


def test_a_use_of_redis_is_found() -> None:
    source = (
        "async def peek(store):\n    return await store.connection.call(0, b'GET', store.keys.clock(0))\n"
    )
    assert {what for _, what in _redis_uses(ast.parse(source))} == {".connection", ".keys"}


def _imported_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the full name of everything that is imported, functions and type checking included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _packages_of(name: str) -> list[str]:
    """Return the packages with a declared surface that contain a name."""
    return [package for package in SURFACES if name.startswith(package + ".")]


def _module_name(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return name if name.startswith("breadcrumbs") else f"breadcrumbs.{name}"


def _modules() -> Iterator[Path]:
    for name in ("agents", "breadcrumbs", "context_builder", "runtime"):
        yield from (ROOT / name).rglob("*.py")


def _redis_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in REDIS_ATTRIBUTES and _is_store(node.value):
            yield node.lineno, f".{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module in REDIS_MODULES:
            yield node.lineno, node.module


def _is_store(node: ast.expr) -> bool:
    """Whether an expression is a store by its name: `store`, `self._store`, `call.services.store`."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lstrip("_") == "store"
