"""The access policy: decides for each operation what a principal may do.

Routes, streams, sessions, ADK, contexts and records call these functions and contain no rules themselves. A `check_…`
function raises an error, a `may_…` function returns a bool, and an `admit_…` function returns the value to write.

For an invisible resource the functions raise `NotFound`, with the same message as for a missing one. They raise
`Forbidden` if the principal can see the resource but may not use it. The owner is part of every key in the store, so
the breadcrumbs and sessions passed to these functions always belong to the principal's tenant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from uuid import UUID

from breadcrumbs.runtime.access.principal import Principal
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb, BreadcrumbCreate, BreadcrumbUpdate
from breadcrumbs.runtime.breadcrumb.query import Query
from breadcrumbs.runtime.breadcrumb.session_rule import (
    MAX_TAGS,
    SESSION,
    USER,
    check_new_user_tags,
    session_of,
    users_of,
)
from breadcrumbs.runtime.errors import Forbidden, InvalidInput, NotFound, Unauthenticated
from breadcrumbs.runtime.schema_names import ADK_EVENT, FEEDBACK, SESSION_RECORD, STATE_CHANGE, TOOL_RESPONSE
from breadcrumbs.runtime.settings.settings import Role
from breadcrumbs.runtime.store.state import (
    ADK_SESSION,
    ONLY_CREDENTIALS,
    SHARED_DELTA,
    STATE_HOLDER,
    STATEFUL,
    StateReaders,
)

# Operations


@dataclass(frozen=True, slots=True)
class Rule:
    """Conditions for calling an operation."""

    roles: tuple[Role, ...] = ()
    """Required roles, all of them. A curator has every role."""
    narrowed: bool = True
    """Whether a token narrowed to a session or a user may call it."""
    access: Literal["open", "token", "key"] = "token"
    """`open` requires no credentials, `token` a token or an API key, `key` an API key except in development mode."""


_READ: Final = Rule(("subscriber",))
_WRITE: Final = Rule(("emitter",))
_WRITE_AND_READ: Final = Rule(("emitter", "subscriber"))
_ADMINISTER: Final = Rule(("curator",), narrowed=False)
_OPEN: Final = Rule(access="open")

_ADK_RULES: Final = {
    "createAdkSession": _WRITE_AND_READ,  # the reply contains the state of the app and the user
    "createAdkSessionWithId": _WRITE_AND_READ,
    "changeAdkState": _WRITE_AND_READ,  # the reply contains the session
    "appendAdkEvent": _WRITE,
    "deleteAdkSession": _WRITE,
    "getAdkSession": _READ,
    "listAdkSessions": _READ,
    "listAdkSessionsOfApp": _READ,
    "getAdkUserState": _READ,
}

RULES: Final[Mapping[str, Rule]] = {
    "listModels": _READ,
    "listAnsweringAgents": _READ,
    "listAgentsInForce": Rule(("subscriber",), narrowed=False),
    "agentDefinitionSchema": _READ,
    "checkAgentDefinition": _READ,
    "tryAgentDefinition": _ADMINISTER,  # it costs money
    "listSessions": _READ,
    "getSession": _READ,
    "listMessages": _READ,
    "getMessage": _READ,
    "getChain": _READ,
    "createSession": _WRITE,
    "changeSession": _WRITE,
    "deleteSession": _WRITE,
    "postMessage": _WRITE,
    "waitForAnswer": _READ,  # postMessage with `wait`
    "forkSession": _WRITE,
    "retryTurn": _WRITE,
    "createBreadcrumb": _WRITE,
    "updateBreadcrumb": _WRITE,
    "deleteBreadcrumb": _WRITE,
    "listBreadcrumbs": _READ,
    "getBreadcrumb": _READ,
    "getBreadcrumbFull": _READ,
    "getBreadcrumbHistory": _READ,
    "rateAnswer": _WRITE_AND_READ,  # the reply contains facts about the answer
    "withdrawFeedback": _WRITE_AND_READ,
    "getFeedback": _READ,
    "listFeedback": _READ,
    "countFeedback": _READ,
    "streamEvents": _READ,
    "saveSelector": _READ,
    "listSelectors": _READ,
    "replaceSelector": _READ,
    "deleteSelector": _READ,
    "listAgents": _READ,
    "getAgent": _READ,
    "putAgent": Rule(narrowed=False),
    "deleteAgent": _ADMINISTER,
    "listTenants": _ADMINISTER,
    "getTenant": _ADMINISTER,
    "putTenant": _ADMINISTER,
    "renameTenant": _ADMINISTER,
    "deleteTenant": _ADMINISTER,
    "listDeadLetters": _ADMINISTER,
    "retryDeadLetter": _ADMINISTER,
    "discardDeadLetter": _ADMINISTER,
    "getUsage": _READ,
    "operations": _ADMINISTER,
    "checks": _ADMINISTER,
    "listWorkers": _ADMINISTER,
    "drainWorkers": _ADMINISTER,
    "loadHistory": _ADMINISTER,
    "runningWorkers": Rule(),
    "runHygiene": _ADMINISTER,
    "hygieneStats": _ADMINISTER,
    "explainContext": _READ,
    "getReceipt": _READ,
    "replayAnswer": _ADMINISTER,  # it costs money, and its prompt can contain items of other sessions
    "recordSession": _ADMINISTER,  # its prompts can contain items of other sessions
    "previewContext": _READ,
    "testContextConfig": _READ,
    "checkContextConfig": _READ,
    "contextConfigSchema": _READ,
    "contextConfigValues": Rule(("subscriber",), narrowed=False),
    "listContextConfigs": Rule(("subscriber",), narrowed=False),
    "readContextConfig": Rule(("subscriber",), narrowed=False),
    "replaceContextConfig": _ADMINISTER,
    "contextConfigLog": Rule(("subscriber",), narrowed=False),
    "pastContextConfig": Rule(("subscriber",), narrowed=False),
    "rollBackContextConfig": _ADMINISTER,
    **_ADK_RULES,
    **{f"{operation}BelowApi": rule for operation, rule in _ADK_RULES.items()},
    "issueToken": Rule(access="key"),
    "health": _OPEN,
    "ready": _OPEN,
    "metrics": _OPEN,
    "openapi": _OPEN,
    "docs": _OPEN,
    "startPage": _OPEN,
    "pageAsset": _OPEN,
    "readGuide": _OPEN,
}
"""The rule of every operation, by operation id. An operation without a rule cannot be served."""


def check_operation(principal: Principal, operation: str) -> None:
    """Check that the principal may call the operation. The functions below check the resources."""
    rule = RULES[operation]
    for role in rule.roles:
        if not has_role(principal, role):
            raise Forbidden(f"this operation requires the role {role!r}: use a token that has it")
    if principal.is_narrowed and not rule.narrowed:
        raise Forbidden(
            "this operation is not allowed for a token that is narrowed to a session or a user: use another token"
        )


def has_role(principal: Principal, role: Role) -> bool:
    """Return whether the principal has a role. A curator has every role."""
    return role in principal.roles or "curator" in principal.roles


# The installation


def check_drain(owners: Iterable[UUID]) -> None:
    """Check that workers may be drained over HTTP. `owners` are the owners of all API keys of the server.

    Workers serve all owners. A curator of one owner must not stop them for the others.
    """
    if len(set(owners)) > 1:
        raise Forbidden(
            "several owners share the workers, so they cannot be drained over HTTP: use crumb workers drain NAME "
            "--redis URL, or stop the process with SIGTERM"
        )


# Tokens


def admit_token_request(
    key: Principal,
    key_agents: frozenset[UUID],
    *,
    owner_id: UUID | None,
    agent_id: UUID | None,
    roles: Iterable[Role] | None,
) -> Principal:
    """Return the principal of a new token for an API key. The caller adds the narrowing."""
    if owner_id not in (None, key.owner_id):
        raise Forbidden("this API key belongs to another owner_id: omit it")
    if agent_id is not None and agent_id not in key_agents:
        raise Forbidden(
            "this API key may not act as this agent_id: omit it, or add the id to the key's agent_ids"
        )
    wanted = frozenset(roles or key.roles)
    if excess := wanted - key.roles:
        raise Forbidden(f"this API key does not have the role {', '.join(sorted(excess))}: omit it")
    return replace(key, agent_id=agent_id or key.agent_id, roles=wanted)


def check_session_not_deleted(principal: Principal, last_deletion: int) -> None:
    """Refuse a token whose session was deleted after the token was issued.

    A later session of the same name can belong to another user. `last_deletion` is 0 if there was none.
    """
    if principal.session_id is not None and last_deletion and principal.issued <= last_deletion:
        raise Unauthenticated(
            f"session {principal.session_id!r} was deleted after this token was issued: get a new token"
        )


# Breadcrumbs: reading


def may_see(principal: Principal, crumb: Breadcrumb) -> bool:
    """Return whether the breadcrumb is visible to the principal."""
    return may_see_event(principal, crumb.tags, crumb.created_by if crumb.visibility == "private" else None)


def may_see_event(principal: Principal, tags: list[str], private_to: UUID | None) -> bool:
    """Make the same decision from the tags of an event. `private_to` is the creator of a private breadcrumb."""
    return (
        (principal.session_id is None or SESSION + principal.session_id in tags)
        and (principal.user_id is None or USER + principal.user_id in tags)
        and (private_to is None or private_to == principal.agent_id or may_read_secrets(principal))
    )


def may_read_secrets(principal: Principal) -> bool:
    """Return whether the principal may read secret breadcrumbs and private ones of other agents."""
    return "curator" in principal.roles


def may_read_content(principal: Principal, crumb: Breadcrumb) -> bool:
    """Return whether the principal may read the context of a breadcrumb that is visible to it."""
    return crumb.sensitivity != "secret" or may_read_secrets(principal)


def may_read(principal: Principal, crumb: Breadcrumb) -> bool:
    return may_see(principal, crumb) and may_read_content(principal, crumb)


def check_readable(principal: Principal, crumb: Breadcrumb) -> None:
    if not may_see(principal, crumb):
        raise NotFound("breadcrumb not found")
    if not may_read_content(principal, crumb):
        raise Forbidden("this breadcrumb is secret: reading it requires the role 'curator'")


def restrict_query(principal: Principal, query: Query) -> Query:
    """Return the query with conditions that exclude breadcrumbs invisible to the principal."""
    tags = query.all_tags
    if principal.session_id is not None:
        tags += (SESSION + principal.session_id,)
    if principal.user_id is not None:
        tags += (USER + principal.user_id,)
    return replace(query, all_tags=tuple(dict.fromkeys(tags)), keep=lambda crumb: may_see(principal, crumb))


# Breadcrumbs: writing


def admit_new(principal: Principal, new: BreadcrumbCreate) -> BreadcrumbCreate:
    """Check a new breadcrumb, and add the tags of a narrowed token."""
    check_new_user_tags(new.tags)
    _check_not_feedback(new.schema_name)
    if new.schema_name in (SESSION_RECORD, STATE_CHANGE):
        if "model" in new.context:
            check_model_choice(principal)
        if "agent" in new.context:
            check_agent_choice(principal)
    if not principal.is_narrowed:
        return new
    named = (session_of(new.tags), new.context.get("session_id"))
    if principal.session_id is not None and any(
        session not in (None, principal.session_id) for session in named
    ):
        raise Forbidden(f"this token is for session {principal.session_id!r} only")
    _check_users(principal, users_of(new.tags), new.context.get("user_id"))
    _check_schema(principal, new)
    _check_shared_state(principal, new.context, {})
    if isinstance(delta := new.context.get("state_delta"), dict):
        check_state_names(principal, delta)
    return new.model_copy(update={"tags": _with_tags(new.tags, _own_tags(principal))})


def admit_change(principal: Principal, crumb: Breadcrumb, change: BreadcrumbUpdate) -> BreadcrumbUpdate:
    """Check a change of a breadcrumb. A narrowed token cannot remove `user:` tags, so they are added again."""
    if not may_see(principal, crumb):
        raise NotFound("breadcrumb not found")
    _check_not_feedback(crumb.schema_name, change.schema_name)
    if not may_read_content(principal, crumb):
        _check_change_of_secret(crumb, change)
    check_new_user_tags(change.tags or (), existing=crumb.tags)
    if not principal.is_narrowed:
        return change
    # A value that equals the old one is not a change. For a secret breadcrumb this comparison would reveal the old one.
    before = crumb.context if may_read_content(principal, crumb) else {}
    after = change.context or {}
    if SESSION_RECORD in (crumb.schema_name, change.schema_name):
        raise Forbidden("a narrowed token cannot change session records: use PATCH /sessions/{id} instead")
    _check_shared_state(principal, after, before)
    added = [tag for tag in users_of(change.tags or []) if tag not in crumb.tags]
    user = after.get("user_id")
    _check_users(principal, added, None if user == before.get("user_id") else user)
    if "tags" not in change.model_fields_set:
        return change
    own = _own_tags(principal) if principal.user_id is not None else []
    return change.model_copy(update={"tags": _with_tags(change.tags or [], [*users_of(crumb.tags), *own])})


def check_delete(principal: Principal, crumb: Breadcrumb) -> None:
    """Check that the principal may delete a breadcrumb. A narrowed token withdraws only the feedback of its user."""
    if not may_see(principal, crumb):
        raise NotFound("breadcrumb not found")
    if principal.is_narrowed and crumb.schema_name == FEEDBACK:
        raise Forbidden(
            "a narrowed token cannot delete feedback here: use DELETE /breadcrumbs/{id}/feedback with the id of the "
            "answer"
        )


def _check_not_feedback(*schema_names: str | None) -> None:
    """Refuse a write of feedback by its fields. The runtime fills them from the answer, so they cannot be forged."""
    if FEEDBACK in schema_names:
        raise InvalidInput(
            f"{FEEDBACK} cannot be written here: use PUT /breadcrumbs/{{id}}/feedback with the id of the answer",
            where="schema_name",
        )


def needs_session_user(principal: Principal) -> bool:
    """Return whether the caller must look up the user of the session for `check_session_user`."""
    return principal.user_id is not None


def check_session_user(principal: Principal, session: str, user: str | None) -> None:
    """Check that the principal may change or delete breadcrumbs in a session of `user`.

    A change creates a new context of the session, which would show messages of other users to the token.
    """
    if principal.is_narrowed and session.startswith(STATE_HOLDER):
        raise Forbidden("shared state cannot be changed here: use the routes below /apps")
    if principal.user_id not in (None, user):
        raise Forbidden(
            f"session {session!r} belongs to another user, and this token is for user {principal.user_id!r} only"
        )


def _own_tags(principal: Principal) -> list[str]:
    tags = []
    if principal.session_id is not None:
        tags.append(SESSION + principal.session_id)
    if principal.user_id is not None:
        tags.append(USER + principal.user_id)
    return tags


def _with_tags(tags: list[str], added: Iterable[str]) -> list[str]:
    joined = list(dict.fromkeys([*tags, *added]))
    if len(joined) > MAX_TAGS:
        raise InvalidInput(f"at most {MAX_TAGS} tags are allowed, including those of the token", where="tags")
    return joined


def _check_users(principal: Principal, tags: Iterable[str], user_id: object) -> None:
    """Check that a narrowed token names only its own user, in tags and in `context.user_id`."""
    named = [tag[len(USER) :] for tag in tags] + ([] if user_id is None else [user_id])
    if all(user == principal.user_id for user in named):
        return
    if principal.user_id is None:
        raise Forbidden("this token was issued without a user: omit user: tags and user_id")
    raise Forbidden(f"this token is for user {principal.user_id!r} only")


def _check_schema(principal: Principal, new: BreadcrumbCreate) -> None:
    """Refuse records that would change more of a session than a narrowed token may change."""
    if new.schema_name == SESSION_RECORD:
        raise Forbidden(
            "a narrowed token cannot post session records: use POST /sessions or PATCH /sessions/{id} instead"
        )
    if new.schema_name == TOOL_RESPONSE:
        raise Forbidden(
            "a narrowed token cannot answer tool requests: use a token that is not narrowed to a session or a user"
        )
    if principal.user_id is None:
        return
    changes_state = new.schema_name in STATEFUL and "state_delta" in new.context
    if new.schema_name in (STATE_CHANGE, ADK_EVENT) or changes_state:
        raise Forbidden(
            f"this token is for user {principal.user_id!r} only: use PATCH /sessions/{{id}} instead"
        )


def _check_shared_state(principal: Principal, context: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    if SHARED_DELTA in context and context[SHARED_DELTA] != before.get(SHARED_DELTA):
        raise Forbidden(
            f"a narrowed token cannot set {SHARED_DELTA}, which changes the state of all users: omit it"
        )


def _check_change_of_secret(crumb: Breadcrumb, change: BreadcrumbUpdate) -> None:
    if "sensitivity" in change.model_fields_set and change.sensitivity != "secret":
        raise Forbidden("removing the sensitivity 'secret' from a breadcrumb requires the role 'curator'")
    if (change.context or {}).get(ONLY_CREDENTIALS) is True and crumb.context.get(
        ONLY_CREDENTIALS
    ) is not True:
        raise Forbidden(f"setting {ONLY_CREDENTIALS} on a secret breadcrumb requires the role 'curator'")


# Sessions


def may_see_session(principal: Principal, session: str, user: str | None) -> bool:
    """Return whether a session of `user` is visible to the principal."""
    return (
        not session.startswith(STATE_HOLDER)
        and principal.session_id in (None, session)
        and principal.user_id in (None, user)
    )


def may_name_session(principal: Principal, session: str) -> bool:
    """Return whether a session can be visible, before it is looked up. `may_see_session` also checks its user."""
    return not session.startswith(STATE_HOLDER) and principal.session_id in (None, session)


def may_begin_session(principal: Principal, session: str) -> bool:
    """Return whether a write may create a session of this name.

    A narrowed token may not create ADK sessions this way, because the name of an ADK session contains its user.
    """
    return not principal.is_narrowed or not session.startswith((STATE_HOLDER, ADK_SESSION))


def admit_session_name(principal: Principal, wanted: str | None) -> str | None:
    """Check the name of a new session. Return None if the caller is to generate one."""
    name = principal.session_id if wanted is None else wanted
    if name is None:
        return None
    check_no_state_holder(name, where="id")
    if principal.session_id not in (None, name):
        raise Forbidden(f"this token is for session {principal.session_id!r} only")
    if principal.is_narrowed and name.startswith(ADK_SESSION):
        raise Forbidden(
            f"a session whose id begins with {ADK_SESSION!r} cannot be created here: use the routes below /apps"
        )
    return name


def check_no_state_holder(session: str, *, where: str) -> None:
    """Refuse an id that is reserved for the sessions that contain ADK's shared state."""
    if session.startswith(STATE_HOLDER):
        raise InvalidInput(f"a session id must not begin with {STATE_HOLDER!r}", where=where)


def admit_session_user(principal: Principal, wanted: str | None) -> str | None:
    """Check the user of a new session, and return it."""
    if wanted is not None and principal.is_narrowed:
        _check_users(principal, (), wanted)
    return principal.user_id if wanted is None else wanted


def check_state_names(principal: Principal, delta: Mapping[str, Any]) -> None:
    """Check that a narrowed token sets no names that ADK treats as shared state."""
    app, user = may_see_shared_names(principal)
    if any(
        (name.startswith("app:") and not app) or (name.startswith("user:") and not user) for name in delta
    ):
        raise Forbidden("a narrowed token cannot set app: or user: state, which other sessions share")


def may_choose_model(principal: Principal) -> bool:
    """Return whether the principal may choose the model of a session that it may change."""
    return has_role(principal, "curator")


def check_model_choice(principal: Principal) -> None:
    if not may_choose_model(principal):
        raise Forbidden(
            "choosing the model of a session requires the role 'curator': use a token that has it"
        )


def may_choose_agent(principal: Principal) -> bool:
    """Return whether the principal may choose the agent that answers in a session that it may change."""
    return has_role(principal, "curator")


def check_agent_choice(principal: Principal) -> None:
    if not may_choose_agent(principal):
        raise Forbidden(
            "choosing the agent of a session requires the role 'curator': use a token that has it"
        )


def check_addressee(principal: Principal, chosen: str | None, addressee: str) -> None:
    """Check that a message of a session with a chosen agent is not addressed to another one.

    Only a curator may choose the agent of a session. `chosen` is None if none was chosen.
    """
    if chosen not in (None, addressee) and not may_choose_agent(principal):
        raise Forbidden(
            f"the agent {chosen!r} was chosen for this session: addressing another one requires the role 'curator'"
        )


def check_fork(principal: Principal) -> None:
    """Check that the principal may fork a session, which creates another session."""
    if principal.session_id is not None:
        raise Forbidden(
            f"this token is for session {principal.session_id!r} only: it cannot create another one"
        )


def may_read_state(principal: Principal, guard: StateReaders) -> bool:
    """Return whether the principal may read a value of a session's state."""
    if may_read_secrets(principal):
        return True
    return not guard.secret and guard.private_to in (None, principal.agent_id)


# ADK sessions and the state that they share


def may_see_adk_session(principal: Principal, session: str, user: str) -> bool:
    return principal.session_id in (None, session) and principal.user_id in (None, user)


def check_adk_write(principal: Principal, session: str, user: str) -> None:
    if not may_see_adk_session(principal, session, user):
        raise Forbidden("this token is for another session or another user: use another token")


def check_adk_create(principal: Principal, session: str, user: str) -> None:
    """Check that the principal may create an ADK session, which always has a user."""
    check_adk_write(principal, session, user)
    if principal.session_id is not None and principal.user_id is None:
        raise Forbidden("this token was issued without a user: it cannot create a session of a user")


def may_read_app_state(principal: Principal) -> bool:
    """Return whether the principal may read the `app:` state, which all users of an app share."""
    return not principal.is_narrowed


def may_see_shared_names(principal: Principal) -> tuple[bool, bool]:
    """Return whether the principal may see and set shared state names in a visible session.

    The first value is for `app:` names, the second for `user:` names.
    """
    return not principal.is_narrowed, principal.session_id is None


def may_read_user_state(principal: Principal, user: str) -> bool:
    """Return whether the principal may read the `user:` state, which all sessions of a user in an app share."""
    return principal.session_id is None and principal.user_id in (None, user)


def check_shared_delta(principal: Principal, user: str, *, app_changes: bool, user_changes: bool) -> None:
    if app_changes and not may_read_app_state(principal):
        raise Forbidden("a narrowed token cannot change the state of the app (app:), which all users share")
    if user_changes and not may_read_user_state(principal, user):
        raise Forbidden(
            "a token for one session cannot change the state of the user (user:), which all sessions share"
        )


# Contexts and configuration


def may_see_context_item(principal: Principal, place: Any, users: Any) -> bool:
    """Return whether an item of a context is visible to the principal.

    `place` is the place of its part, and `users` are the `user:` tags of the item.
    """
    if not principal.is_narrowed:
        return True
    if not isinstance(users, list):
        return False
    is_own = principal.user_id is not None and USER + principal.user_id in users
    if place == "shared":
        # A shared breadcrumb without users, such as a tool catalog, is for all users. One with users is only for them.
        return not users or is_own
    if principal.session_id is not None and place != "conversation":
        return False
    return principal.user_id is None or is_own


def may_edit_config_file(principal: Principal) -> bool:
    return has_role(principal, "curator")


def find_restriction(crumb: Breadcrumb) -> Literal["narrowed", "hidden"] | None:
    """Return why a definition does not apply to all sessions, or None if it does.

    `crumb` is a context config, an agent definition or a schema definition.

    All breadcrumbs of a narrowed token have its session tag or its user tag. They must not control the contexts and
    answers of other sessions. Private and secret breadcrumbs must not become visible through the contexts and answers
    that they control.
    """
    if any(tag.startswith((SESSION, USER)) for tag in crumb.tags):
        return "narrowed"
    return "hidden" if crumb.visibility == "private" or crumb.sensitivity == "secret" else None


# Records: agents, selectors, tenants


def may_see_agent(principal: Principal, agent_id: UUID) -> bool:
    return not principal.is_narrowed or agent_id == principal.agent_id


def check_agent_change(principal: Principal, agent_id: UUID) -> None:
    if agent_id != principal.agent_id and not has_role(principal, "curator"):
        raise Forbidden("changing the record of another agent requires the role 'curator'")


def owns_selector(principal: Principal, agent_id: UUID, session_id: str | None, user_id: str | None) -> bool:
    """Return whether the principal may list and change a selector. The ids are those of the token that saved it."""
    same_narrowing = (session_id, user_id) == (principal.session_id, principal.user_id)
    return agent_id == principal.agent_id and (same_narrowing or not principal.is_narrowed)


def may_use_selector(
    principal: Principal, agent_id: UUID, session_id: str | None, user_id: str | None
) -> bool:
    """Return whether a stream of the principal may use a saved selector. Matches reveal its content."""
    return not principal.is_narrowed or owns_selector(principal, agent_id, session_id, user_id)


def check_tenant(principal: Principal, owner_id: UUID) -> None:
    if owner_id != principal.owner_id:
        raise NotFound("tenant not found")
