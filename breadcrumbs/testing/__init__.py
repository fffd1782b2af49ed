"""Tests of agents, with pytest.

    from breadcrumbs.testing import Crumbs, call_tool

    def test_the_assistant_counts_words(crumbs: Crumbs) -> None:
        crumbs.run("assistant", replies=[call_tool("word_count", text="one two three"), "Three words."])
        answer = crumbs.say("How many words has: one two three?")
        answer.saw("How many words").called("word_count", text="one two three")
        assert answer.text == "Three words."

The fixture `crumbs` comes with the package. Its server is temporary and starts with the first test that uses it.
Each name is imported when it is first used, so that tests of other programs load nothing.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from breadcrumbs.agents.models.base import ModelError, ModelReply, ModelRequest, ToolCall
    from breadcrumbs.agents.models.scripted import FunctionModel, ScriptedModel
    from breadcrumbs.testing.answers import CheckedAnswer, ToolUse
    from breadcrumbs.testing.crumbs import Conversation, Crumbs
    from breadcrumbs.testing.replies import call_tool, call_tools

__all__ = [  # noqa: RUF022 - by topic
    # The fixture and its results
    "Crumbs",
    "Conversation",
    "CheckedAnswer",
    "ToolUse",
    # Models
    "ScriptedModel",
    "FunctionModel",
    "call_tool",
    "call_tools",
    "ModelRequest",
    "ModelReply",
    "ToolCall",
    "ModelError",
]

_MODULE_NAMES = {
    "breadcrumbs.agents.models.base": ("ModelError", "ModelReply", "ModelRequest", "ToolCall"),
    "breadcrumbs.agents.models.scripted": ("FunctionModel", "ScriptedModel"),
    "breadcrumbs.testing.answers": ("CheckedAnswer", "ToolUse"),
    "breadcrumbs.testing.crumbs": ("Conversation", "Crumbs"),
    "breadcrumbs.testing.replies": ("call_tool", "call_tools"),
}
_MODULE_OF = {name: module for module, names in _MODULE_NAMES.items() for name in names}


def __getattr__(name: str) -> _typing.Any:
    """Import a public name when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_importlib.import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
