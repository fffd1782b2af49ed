"""Issues tokens for API keys, or for any request in development mode."""

from __future__ import annotations

from dataclasses import replace

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.breadcrumb.ids import parse_id
from breadcrumbs.runtime.breadcrumb.session_rule import check_new_session_id
from breadcrumbs.runtime.errors import Forbidden, Unauthenticated
from breadcrumbs.runtime.http.api.bodies import parse_body
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Body, Routes, SuccessReply
from breadcrumbs.runtime.http.api.replies import Reply
from breadcrumbs.runtime.http.api.schemas import IssuedToken, TokenRequest
from breadcrumbs.runtime.http.auth import DEVELOPER_AGENT, KeyHolder, check_new_user_id
from breadcrumbs.runtime.sessions.sessions import Sessions
from breadcrumbs.runtime.settings.settings import ALL_ROLES, DEVELOPER

routes = Routes("Access")


@routes.operation(
    id="issueToken",
    method="POST",
    path="/auth/token",
    summary="Issue a token",
    description=(
        "In development mode a request can choose any owner, agent and roles, and all fields are optional. "
        "Otherwise the request needs an API key. The key decides the owner, and the token cannot have more roles "
        "than the key. `session_id` and `user_id` narrow the token to one session or one user."
    ),
    uses_store="writes",
    body=Body(TokenRequest, {"roles": ["emitter", "subscriber"], "ttl_sec": 3600}, required=False),
    successes=(SuccessReply(200, "The token.", IssuedToken),),
)
async def issue_token(call: HttpCall) -> Reply:
    services = call.services
    holder = None if services.auth.development_mode else _require_key_holder(call)
    wanted = await _read_token_request(call)
    principal = await _narrow_principal(call, wanted, _token_principal(wanted, holder))
    lifetime = wanted.ttl_sec or services.settings.token_ttl.total_seconds()
    # As in RCRT, issuing a token also registers its agent.
    await services.registry.put_agent(principal.owner_id, principal.agent_id, sorted(principal.roles))
    token, expires = services.auth.issue(principal, lifetime)
    body: IssuedToken = {
        "token": token,
        "owner_id": str(principal.owner_id),
        "agent_id": str(principal.agent_id),
        "roles": sorted(principal.roles),
        "exp": expires,
    }
    if principal.session_id is not None:
        body["session_id"] = principal.session_id
    if principal.user_id is not None:
        body["user_id"] = principal.user_id
    return Reply.json(body)


def _require_key_holder(call: HttpCall) -> KeyHolder:
    auth = call.services.auth
    holder = auth.key_holder(call.headers)
    if holder is not None:
        return holder
    if b"authorization" not in call.headers and b"x-api-key" not in call.headers:
        raise Unauthenticated("issuing a token requires an API key: send it in X-API-Key")
    auth.identify(call.headers)  # raises an error with the reason if the credential is not valid
    raise Forbidden("a token cannot be used to get another token: send an API key in X-API-Key")


async def _read_token_request(call: HttpCall) -> TokenRequest:
    document = await call.optional_json()
    return parse_body(TokenRequest, document, error="invalid token request")


def _token_principal(wanted: TokenRequest, holder: KeyHolder | None) -> Principal:
    """Return the principal of the new token, before narrowing."""
    owner = None if wanted.owner_id is None else parse_id(wanted.owner_id, what="owner_id")
    agent = None if wanted.agent_id is None else parse_id(wanted.agent_id, what="agent_id")
    if holder is None:  # development mode: local programs can choose any owner and agent
        return Principal(owner or DEVELOPER, agent or DEVELOPER_AGENT, frozenset(wanted.roles or ALL_ROLES))
    return policy.admit_token_request(
        holder.principal, holder.agents, owner_id=owner, agent_id=agent, roles=wanted.roles
    )


async def _narrow_principal(call: HttpCall, wanted: TokenRequest, principal: Principal) -> Principal:
    """Limit the principal to the session and the user of the request."""
    session = None if wanted.session_id is None else check_new_session_id(wanted.session_id)
    if session is not None:
        policy.check_no_state_holder(session, where="session_id")
    user = None if wanted.user_id is None else check_new_user_id(wanted.user_id)
    principal = replace(principal, session_id=session, user_id=user)
    if session is None:
        return principal
    # The issue time must be later than the last deletion of a session with this name. The token is then valid for
    # the current session or the next one. See policy.check_session_not_deleted.
    store = call.services.store
    deleted = await Sessions(store).last_deletion(principal.owner_id, session)
    return replace(principal, issued=max(store.now(), (deleted or 0) + 1))
