"""An agent that is a Python function. It answers beside the agents that run already.

Start a server first (crumb up). On a server of its own data or Redis, set CRUMB_DATA or CRUMB_REDIS as there.
"""

from breadcrumbs import Call, Client, agent, running_agents

SAID = {"schema_name": "user.message.v1", "any_tags": ["user:message"], "role": "trigger"}
HISTORY = {"schema_name": "user.message.v1", "role": "context", "fetch": {"method": "recent", "limit": 20}}


@agent("counter", triggers=[SAID, HISTORY])
async def counter(call: Call) -> str:
    """Counts the words that this session has heard so far."""
    await call.say("Counting … ")
    words = sum(len(message.content.split()) for message in call.messages if message.role == "user")
    return f"That makes {words} words."


# In a process of its own: run_agents([counter]), or crumb run-agents --load with the module's name.
with running_agents([counter]), Client() as client:
    session = client.session()
    session.say("one two three", agent="counter")
    answer = session.say("four five", agent="counter")
    print(answer)
    assert answer.text == "That makes 5 words."
