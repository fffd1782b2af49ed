"""Responses to tool requests over HTTP: their session, and the tokens that may post them."""

from __future__ import annotations

from typing import Any

from tests.http.conftest import KEY, OTHER_KEY, Site, problem
from tests.http.sessions import begin


async def post(site: Site, headers: dict[str, str], schema: str, tags: list[str], **context: Any) -> Any:
    body = {"schema_name": schema, "title": "t", "tags": tags, "context": context}
    return await site.client.post("/breadcrumbs", json=body, headers=headers)


async def test_a_response_without_a_session_gets_the_session_of_its_request(keyed: Site) -> None:
    mine, theirs = {"X-API-Key": KEY}, {"X-API-Key": OTHER_KEY}
    await begin(keyed, mine, id="s")
    request = (await post(keyed, mine, "tool.request.v1", ["session:s"], tool="t", input={})).json()["id"]
    answered = await post(keyed, mine, "tool.response.v1", [], request_id=request, output=1)
    assert answered.status_code == 201 and answered.json()["session_id"] == "s"
    # Another owner cannot reach the session, and learns nothing about the request.
    foreign = await post(keyed, theirs, "tool.response.v1", [], request_id=request, output=1)
    assert foreign.status_code == 201 and "session_id" not in foreign.json()
    for unusable in ("no id", 7, None, answered.json()["id"]):
        reply = await post(keyed, mine, "tool.response.v1", [], request_id=unusable)
        assert reply.status_code == 201 and "session_id" not in reply.json()


async def test_a_narrowed_token_cannot_answer_for_a_tool(keyed: Site) -> None:
    await begin(keyed, {"X-API-Key": KEY}, id="s", user_id="u")
    for narrowing in ({"session_id": "s"}, {"user_id": "u"}):
        token = await keyed.token(KEY, **narrowing)
        reply = await post(keyed, token, "tool.response.v1", ["session:s"], request_id="r", output=1)
        problem(reply, 403, "forbidden")
