"""Two conversations with the same agent, and neither knows of the other.

Start a server first (crumb up). CRUMB_URL says where it is, if it is not on its usual port.
"""

from breadcrumbs import Answer, Client

with Client() as client:
    first, second = client.session(), client.session()
    first.say("Hello session 1")
    second.say("Hello session 2")

    # The answer comes in pieces while it is being made, and then whole.
    for piece in first.stream("What did I say?"):
        if isinstance(piece, Answer):
            print(f"\n{piece.agent_id} answered {len(piece.text)} characters")
            assert "session 1" in piece.text and "session 2" not in piece.text
        else:
            print(piece.text, end="", flush=True)

    for message in second.messages():
        print(f"{message.role}: {message.text}")
