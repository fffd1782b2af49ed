"""Chat client: two sessions with the same agent that do not see each other.

Shows: `Client`, `Session.say`, streaming with `Session.stream`, and reading a conversation.

Run a server (`crumb up`), then:

    python examples/chat_client.py

`CRUMB_URL` is the address of the server, by default http://127.0.0.1:8081.
"""

from breadcrumbs import Answer, Client

with Client() as client:
    first, second = client.session(), client.session()
    first.say("Hello session 1")
    second.say("Hello session 2")

    # Deltas arrive while the agent writes. The complete answer is the last value.
    for piece in first.stream("What did I say?"):
        if isinstance(piece, Answer):
            print(f"\n{piece.agent_id} answered {len(piece.text)} characters")
            assert "session 1" in piece.text and "session 2" not in piece.text
        else:
            print(piece.text, end="", flush=True)

    for message in second.messages():
        print(f"{message.role}: {message.text}")
