"""The toolbox, and tools loaded from settings."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from breadcrumbs.agents.tools import Toolbox, load_tools, shipped_tools
from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate, build_content
from breadcrumbs.runtime.errors import InvalidInput, StartupError
from breadcrumbs.runtime.hints.hints import apply_hints
from tests.support.tools import CONTEXT

# --- The toolbox ---------------------------------------------------------------------------------------


def test_a_toolbox_returns_only_allowed_tools() -> None:
    box = shipped_tools()
    assert box.names == ["breadcrumb_search", "calculator", "clock", "random"]
    allowed = box.allowed(["clock", "calculator", "clock"])
    assert [one.name for one in allowed] == ["clock", "calculator"]
    assert [spec.name for spec in allowed.specs] == ["clock", "calculator"]
    assert "random" not in allowed
    assert len(box.allowed([])) == 0
    with pytest.raises(InvalidInput, match="tool 'random' not found; available: calculator, clock"):
        allowed.get("random")
    with pytest.raises(InvalidInput, match="tool 'x', 'y' not found; available: breadcrumb_search, calc"):
        box.allowed(["clock", "x", "y"])
    with pytest.raises(InvalidInput, match="available: none"):
        Toolbox().get("clock")


def test_two_tools_cannot_have_one_name() -> None:
    box = shipped_tools()
    with pytest.raises(InvalidInput, match="duplicate tool name"):
        box.add(box.get("clock"))
    assert "clock" in shipped_tools()


def test_the_catalogue_is_a_breadcrumb_that_shows_a_model_names_and_descriptions() -> None:
    catalogue = shipped_tools().catalogue()
    build_content(BreadcrumbCreate.parse(catalogue))
    assert catalogue == Toolbox(reversed(list(shipped_tools()))).catalogue()
    entry = catalogue["context"]["tools"][1]
    assert entry["name"] == "calculator"
    assert entry["inputSchema"]["required"] == ["expression"]
    assert entry["capabilities"] == {"timeout": 5000, "return_to_llm": True, "idempotent": True}
    seen = apply_hints(catalogue["context"], catalogue["llm_hints"])
    assert [set(shown) for shown in seen["tools"]] == [{"name", "description"}] * 4
    assert set(seen) == {"tools"}


# --- Tools from settings -------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    source = """
        from breadcrumbs.agents.tools import tool

        @tool(name="greet")
        def hello(name: str) -> str:
            return f"Hello {name}"

        def shout(text: str) -> str:
            "Say it louder."
            return text.upper()

        def untyped(text):
            return text

        class Group:
            @staticmethod
            def inner(number: int) -> int:
                return number

        number = 3
    """
    (tmp_path / "my_tools.py").write_text(textwrap.dedent(source))
    (tmp_path / "broken_tools.py").write_text("import not_installed_anywhere")
    (tmp_path / "leaving_tools.py").write_text("raise SystemExit(2)")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("my_tools", "broken_tools", "leaving_tools"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("module")
async def test_tools_named_in_settings_are_loaded() -> None:
    specs = ["my_tools:hello", "my_tools:shout", "my_tools:Group.inner", "my_tools:hello"]
    loaded = load_tools(specs)
    assert [one.name for one in loaded] == ["greet", "shout", "inner"]
    assert loaded[1].description == "Say it louder."
    assert (await loaded[1].run({"text": "hi"}, CONTEXT)).output == "HI"


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("my_tools", "write package.module:function"),
        ("my_tools:", "invalid tool name"),
        (":hello", "invalid tool name"),
        ("my tools:hello", "invalid tool name"),
        ("../my_tools:hello", "invalid tool name"),
        ("", "invalid tool name"),
        ("my_tools:nothing", "my_tools has no nothing"),
        ("my_tools:number", "not a function, but a int"),
        ("my_tools:Group", "not a function, but a type"),
        ("my_tools:untyped", "parameter 'text' has no type"),
        ("no_such_package.tools:x", "No module named 'no_such_package'"),
        ("broken_tools:x", "No module named 'not_installed_anywhere'"),
        ("leaving_tools:x", "SystemExit: 2"),
    ],
)
def test_an_invalid_tool_entry_is_refused_at_start_with_the_reason(spec: str, message: str) -> None:
    with pytest.raises(StartupError) as caught:
        load_tools([spec])
    assert message in str(caught.value)
    assert repr(spec) in str(caught.value)
