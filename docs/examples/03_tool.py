"""A tool of one's own, and an agent whose model may use it. The model here is the offline one: no key, no network.

Start a server first (crumb up). On a server of its own data or Redis, set CRUMB_DATA or CRUMB_REDIS as there.
"""

from typing import Annotated

from pydantic import Field

from breadcrumbs import Client, running_agents, tool


@tool
def reverse(text: Annotated[str, Field(description="What to turn round")]) -> str:
    """Spell a text backwards."""
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

    # Every step on the way is a breadcrumb.
    for crumb in client.list(session=session.id, schema_name="tool.response.v1"):
        print(crumb.context["tool"], crumb.context["output"])
