"""Agent with tools: a Python function as a tool, and an agent whose model calls it.

Shows: `@tool`, an agent definition, and `running_agents`. The model is the offline model, which needs no key and no
network. It calls a tool when a message is `use TOOL {ARGUMENTS}`.

Run a server (`crumb up`), then:

    python examples/agent_with_tools.py

If the server was started with `--data` or `--redis`, set `CRUMB_DATA` or `CRUMB_REDIS` to the same value.
"""

from typing import Annotated

from pydantic import Field

from breadcrumbs import Client, running_agents, tool


@tool
def reverse(text: Annotated[str, Field(description="Text to reverse")]) -> str:
    """Reverse the characters of a text."""
    return text[::-1]


librarian = {
    "agent_id": "librarian",
    "system_prompt": "You help with words. Use your tools.",
    "model": "offline",
    "tools": ["reverse"],
    "subscriptions": {"selectors": [{"schema_name": "user.message.v1", "any_tags": ["for:librarian"]}]},
}

with running_agents([librarian], tools=[reverse]), Client() as client:
    session = client.session()
    answer = session.say('use reverse {"text": "desserts"}', agent="librarian", tags=["for:librarian"])
    print(answer)
    assert "stressed" in answer.text

    # Each tool call and each result is a breadcrumb of the session.
    for crumb in client.list(session=session.id, schema_name="tool.response.v1"):
        print(crumb.context["tool"], crumb.context["output"])
