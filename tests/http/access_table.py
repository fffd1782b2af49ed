"""The access table: one row per operation, with the expected outcome for every kind of principal and target.

A matrix has one column per kind of principal and one line per target. Operations of one class share a matrix.

Principals
    none     no credentials                          agent    key of another agent, emitter and subscriber
    curator  API key, all roles                      session  token narrowed to the session `own`
    emitter  API key, role emitter                   s+cur    the same with the role curator
    subscr   API key, role subscriber                user     token narrowed to the user ann
    foreign  curator of another tenant               s+user   token narrowed to `own` and ann
    adk      token narrowed to ann's ADK session     gone     token of a session that was deleted
    again    token of a session that was deleted and created again by another user

Targets
    own, ann2     sessions whose stored user is ann  untagged  breadcrumb of `own` without a user tag
    bob           a session of bob                   annbob    breadcrumb of bob's session, tagged user:ann
    nouser        a session without a user           free      breadcrumb without a session
    again         a session that replaced another    freeann   the same, tagged user:ann
    far           of the other tenant                private   breadcrumb of `own`, private to the principal `agent`
    adkann …      ADK sessions                       secret    breadcrumb of `own` with the sensitivity secret
    holder        the session that holds the `user:` state of ann's ADK sessions; no route shows it
    adkrecord     the record of ann's ADK session    context   a context of `own`, with items of other sessions

Outcomes
    ok     2xx; if the row has `shows`, the response contains the target's marker
    -      2xx without the target's marker
    apart  2xx in the caller's own tenant; nothing of the target's tenant changed
    401    the credentials are not accepted
    403    refused
    404    not found, with the same body as for an id that never existed
    none   not found, without that comparison
Several outcomes separated by a slash: any of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any, TypeAlias
from urllib.parse import quote

from tests.http.access_world import APP, CONTEXT_CONFIG, Target, marker

PRINCIPALS = (
    *("none", "curator", "emitter", "subscr", "agent", "session", "s+cur"),
    *("user", "s+user", "adk", "foreign", "gone", "again"),
)
OUTCOMES = frozenset(("ok", "-", "apart", "401", "403", "404", "none"))

Matrix: TypeAlias = Mapping[str, Mapping[str, frozenset[str]]]
"""Target -> principal -> the expected outcomes."""


def matrix(text: str) -> Matrix:
    head, *lines = [line.split() for line in text.strip().splitlines()]
    assert tuple(head) == PRINCIPALS, f"a matrix has the columns {PRINCIPALS}, in this order"
    found: dict[str, dict[str, frozenset[str]]] = {}
    for target, *cells in lines:
        outcomes = [frozenset(cell.split("/")) for cell in cells]
        assert all(outcome <= OUTCOMES for outcome in outcomes), f"unknown outcome in the line {target}"
        found[target] = dict(zip(PRINCIPALS, outcomes, strict=True))
    return found


def without(table: Matrix, *targets: str) -> Matrix:
    return {target: line for target, line in table.items() if target not in targets}


def of_sessions(table: Matrix) -> Matrix:
    """Return the lines of sessions, which have an answer with feedback."""
    return {target: table[target] for target in ("own", "bob", "ann2", "nouser", "again", "far")}


# Breadcrumbs

READ_CRUMB = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     ok     ok    ok      ok    ok   ok     404 404     404/401 404/401
  untagged  401  ok     403     ok     ok    ok      ok    404  404    404 404     404/401 404/401
  bob       401  ok     403     ok     ok    404     404   404  404    404 404     404/401 404/401
  ann2      401  ok     403     ok     ok    404     404   ok   404    404 404     404/401 404/401
  nouser    401  ok     403     ok     ok    404     404   404  404    404 404     404/401 404/401
  again     401  ok     403     ok     ok    404     404   ok   404    404 404     404/401 401
  free      401  ok     403     ok     ok    404     404   404  404    404 404     404/401 404/401
  freeann   401  ok     403     ok     ok    404     404   ok   404    404 404     404/401 404/401
  annbob    401  ok     403     ok     ok    404     404   ok   404    404 404     404/401 404/401
  private   401  ok     403     404    ok    404     ok    404  404    404 404     404/401 404/401
  secret    401  ok     403     403    403   403     ok    403  403    404 404     404/401 404/401
  context   401  ok     403     ok     ok    ok      ok    ok   ok     404 404     404/401 404/401
  adkrecord 401  ok     403     ok     ok    404     404   ok   404    ok  404     404/401 404/401
  far       401  404    403     404    404   404     404   404  404    404 ok      404/401 404/401
""")

# `freeann` is hidden from a token for a session and ann, but the context in the list may show it (see readers_of).
LIST_CRUMBS = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     ok     ok    ok      ok    ok   ok     -   -       -/401   -/401
  untagged  401  ok     403     ok     ok    ok      ok    -    -      -   -       -/401   -/401
  bob       401  ok     403     ok     ok    -       -     -    -      -   -       -/401   -/401
  ann2      401  ok     403     ok     ok    -       -     ok   -      -   -       -/401   -/401
  nouser    401  ok     403     ok     ok    -       -     -    -      -   -       -/401   -/401
  again     401  ok     403     ok     ok    -       -     ok   -      -   -       -/401   401
  free      401  ok     403     ok     ok    -       -     -    -      -   -       -/401   -/401
  freeann   401  ok     403     ok     ok    -       -     ok   ok/-   -   -       -/401   -/401
  annbob    401  ok     403     ok     ok    -       -     ok   -      -   -       -/401   -/401
  private   401  ok     403     -      ok    -       ok    -    -      -   -       -/401   -/401
  secret    401  ok     403     -      -     -       ok    -    -      -   -       -/401   -/401
  far       401  -      403     -      -     -       -     -    -      -   ok      -/401   -/401
""")

WRITE_CRUMB = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     ok      403    ok    ok      ok    ok   ok     404 404     404/401 404/401
  untagged  401  ok     ok      403    ok    ok      ok    404  404    404 404     404/401 404/401
  bob       401  ok     ok      403    ok    404     404   404  404    404 404     404/401 404/401
  ann2      401  ok     ok      403    ok    404     404   ok   404    404 404     404/401 404/401
  nouser    401  ok     ok      403    ok    404     404   404  404    404 404     404/401 404/401
  again     401  ok     ok      403    ok    404     404   ok   404    404 404     404/401 401
  free      401  ok     ok      403    ok    404     404   404  404    404 404     404/401 404/401
  freeann   401  ok     ok      403    ok    404     404   ok   404    404 404     404/401 404/401
  annbob    401  ok     ok      403    ok    404     404   403  404    404 404     404/401 404/401
  private   401  ok     404     403    ok    404     ok    404  404    404 404     404/401 404/401
  secret    401  ok     ok      403    ok    ok      ok    ok   ok     404 404     404/401 404/401
  far       401  404    404     403    404   404     404   404  404    404 ok      404/401 404/401
""")

# Rating needs both roles, because the reply contains facts about the answer.
RATE_ANSWER = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     403    ok    ok      ok    ok   ok     404 404     404/401 404/401
  bob       401  ok     403     403    ok    404     404   404  404    404 404     404/401 404/401
  ann2      401  ok     403     403    ok    404     404   ok   404    404 404     404/401 404/401
  nouser    401  ok     403     403    ok    404     404   404  404    404 404     404/401 404/401
  again     401  ok     403     403    ok    404     404   ok   404    404 404     404/401 401
  far       401  404    403     403    404   404     404   404  404    404 ok      404/401 404/401
""")

# A session token adds its session to a breadcrumb without one. A user token starts sessions, so an unknown
# session cannot be compared with one of another user.
CREATE_CRUMB = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     ok      403    ok    ok      ok    ok   ok     403 apart   403/401 403/401
  bob       401  ok     ok      403    ok    403     403   none 403    403 apart   403/401 403/401
  ann2      401  ok     ok      403    ok    403     403   ok   403    403 apart   403/401 403/401
  nouser    401  ok     ok      403    ok    403     403   none 403    403 apart   403/401 403/401
  again     401  ok     ok      403    ok    403     403   ok   403    403 apart   403/401 401
  free      401  ok     ok      403    ok    ok      ok    ok   ok     ok  apart   401     401
  far       401  apart  apart   403    apart 403     403   apart 403   403 ok      403/401 403/401
""")

# Sessions

READ_SESSION = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     ok     ok    ok      ok    ok   ok     404 404     404/401 404/401
  bob       401  ok     403     ok     ok    404     404   404  404    404 404     404/401 404/401
  ann2      401  ok     403     ok     ok    404     404   ok   404    404 404     404/401 404/401
  nouser    401  ok     403     ok     ok    404     404   404  404    404 404     404/401 404/401
  again     401  ok     403     ok     ok    404     404   ok   404    404 404     404/401 401
  adkann    401  ok     403     ok     ok    404     404   ok   404    ok  404     404/401 404/401
  holder    401  404    403     404    404   404     404   404  404    404 404     404/401 404/401
  far       401  404    403     404    404   404     404   404  404    404 ok      404/401 404/401
""")

# The session is in the query, and the reply names it, so replies about different sessions differ.
READ_USAGE = {
    target: {
        principal: frozenset("none" if outcome == "404" else outcome for outcome in outcomes)
        for principal, outcomes in line.items()
    }
    for target, line in READ_SESSION.items()
}

LIST_SESSIONS = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     ok     ok    ok      ok    ok   ok     -   -       -/401   -/401
  bob       401  ok     403     ok     ok    -       -     -    -      -   -       -/401   -/401
  ann2      401  ok     403     ok     ok    -       -     ok   -      -   -       -/401   -/401
  nouser    401  ok     403     ok     ok    -       -     -    -      -   -       -/401   -/401
  again     401  ok     403     ok     ok    -       -     ok   -      -   -       -/401   401
  far       401  -      403     -      -     -       -     -    -      -   ok      -/401   -/401
""")

# A new session for the user of the target.
CREATE_SESSION = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     ok      403    ok    403     403   ok   403    403 apart   403/401 403/401
  bob       401  ok     ok      403    ok    403     403   403  403    403 apart   403/401 403/401
  nouser    401  ok     ok      403    ok    403     403   ok   403    403 apart   403/401 403/401
""")

WRITE_SESSION = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     ok      403    ok    ok      ok    ok   ok     404 404     404/401 404/401
  bob       401  ok     ok      403    ok    404     404   404  404    404 404     404/401 404/401
  ann2      401  ok     ok      403    ok    404     404   ok   404    404 404     404/401 404/401
  nouser    401  ok     ok      403    ok    404     404   404  404    404 404     404/401 404/401
  again     401  ok     ok      403    ok    404     404   ok   404    404 404     404/401 401
  adkann    401  ok     ok      403    ok    404     404   ok   404    ok  404     404/401 404/401
  holder    401  404    404     403    404   404     404   404  404    404 404     404/401 404/401
  far       401  404    404     403    404   404     404   404  404    404 ok      404/401 404/401
""")

# A message starts a session that does not exist.
POST_MESSAGE = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     ok      403    ok    ok      ok    ok   ok     404 apart   404/401 404/401
  bob       401  ok     ok      403    ok    404     404   none 404    404 apart   404/401 404/401
  ann2      401  ok     ok      403    ok    404     404   ok   404    404 apart   404/401 404/401
  nouser    401  ok     ok      403    ok    404     404   none 404    404 apart   404/401 404/401
  again     401  ok     ok      403    ok    404     404   ok   404    404 apart   404/401 401
  adkann    401  ok     ok      403    ok    404     404   ok   404    ok  apart   404/401 404/401
  holder    401  none   none    403    none  404     404   none 404    404 none    404/401 404/401
  far       401  apart  apart   403    apart 404     404   apart 404   404 ok      404/401 404/401
""")

# A session token stays in its session, so it cannot make a second one out of it.
FORK_SESSION = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     ok      403    ok    403     403   ok   403    404 404     404/401 404/401
  bob       401  ok     ok      403    ok    404     404   404  404    404 404     404/401 404/401
  ann2      401  ok     ok      403    ok    404     404   ok   404    404 404     404/401 404/401
  nouser    401  ok     ok      403    ok    404     404   404  404    404 404     404/401 404/401
  again     401  ok     ok      403    ok    404     404   ok   404    404 404     404/401 401
  adkann    401  ok     ok      403    ok    404     404   ok   404    403 404     404/401 404/401
  holder    401  404    404     403    404   404     404   404  404    404 404     404/401 404/401
  far       401  404    404     403    404   404     404   404  404    404 ok      404/401 404/401
""")

# Contexts. The breadcrumb `free` is not one. Its readers get that error, others get "not found".

READ_CONTEXT = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     ok     ok    ok      ok    ok   ok     404 404     404/401 404/401
  bob       401  ok     403     ok     ok    404     404   404  404    404 404     404/401 404/401
  ann2      401  ok     403     ok     ok    404     404   ok   404    404 404     404/401 404/401
  nouser    401  ok     403     ok     ok    404     404   404  404    404 404     404/401 404/401
  nocontext 401  none   403     none   none  404     404   404  404    404 404     404/401 404/401
  far       401  404    403     404    404   404     404   404  404    404 ok      404/401 404/401
""")

# A replay costs money, and its prompt can contain items of other sessions.
REPLAY = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     403    403   403     403   403  403    403 404     403/401 403/401
  bob       401  ok     403     403    403   403     403   403  403    403 404     403/401 403/401
  nouser    401  ok     403     403    403   403     403   403  403    403 404     403/401 403/401
  nocontext 401  none   403     403    403   403     403   403  403    403 404     403/401 403/401
  far       401  404    403     403    403   403     403   403  403    403 ok      403/401 403/401
""")

READ_CONFIGS = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     ok     ok    403     403   403  403    403 -       403/401 403/401
  far       401  -      403     -      -     403     403   403  403    403 ok      403/401 403/401
""")

# Two tenants share the file, so neither of them can write it.
WRITE_CONFIG_FILE = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  403    403     403    403   403     403   403  403    403 403     403/401 403/401
""")

# The digest in these requests is unknown, so a permitted request finds nothing.
READ_PAST_CONFIG = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  404    403     404    404   403     403   403  403    403 404     403/401 403/401
""")

ROLL_BACK_CONFIG = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  404    403     403    403   403     403   403  403    403 404     403/401 403/401
""")

# A trial uses only the caller's own definition.
TRY_AGENT = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     403    403   403     403   403  403    403 ok      403/401 403/401
""")

READ_PUBLIC = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     ok     ok    ok      ok    ok   ok     ok  ok      ok/401  ok/401
""")

# Selectors: an agent's own; a narrowed token uses those that were saved under the same narrowing.

WRITE_SELECTOR = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  selcur    401  ok     403     404    404   404     404   404  404    404 404     404/401 404/401
  selagt    401  404    403     404    ok    404     404   404  404    404 404     404/401 404/401
  selses    401  ok     403     404    404   ok      ok    404  404    404 404     404/401 404/401
  selusr    401  ok     403     404    404   404     404   ok   404    404 404     404/401 404/401
  selsu     401  ok     403     404    404   404     404   404  ok     404 404     404/401 404/401
  selfar    401  404    403     404    404   404     404   404  404    404 ok      404/401 404/401
""")

LIST_SELECTORS = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  selcur    401  ok     403     -      -     -       -     -    -      -   -       -/401   -/401
  selagt    401  -      403     -      ok    -       -     -    -      -   -       -/401   -/401
  selses    401  ok     403     -      -     ok      ok    -    -      -   -       -/401   -/401
  selusr    401  ok     403     -      -     -       -     ok   -      -   -       -/401   -/401
  selsu     401  ok     403     -      -     -       -     -    ok     -   -       -/401   -/401
  selfar    401  -      403     -      -     -       -     -    -      -   ok      -/401   -/401
""")

SAVE_SELECTOR = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     ok     ok    ok      ok    ok   ok     ok  apart   401     401
""")

# Agents. `own` is the agent of the curator's key, which the narrowed tokens were requested with.

READ_AGENT = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     ok     ok    ok      ok    ok   ok     ok  404     ok/401  ok/401
  agent     401  ok     403     ok     ok    404     404   404  404    404 404     404/401 404/401
  far       401  404    403     404    404   404     404   404  404    404 ok      404/401 404/401
""")

LIST_AGENTS = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     ok     ok    ok      ok    ok   ok     ok  -       ok/401  ok/401
  agent     401  ok     403     ok     ok    -       -     -    -      -   -       -/401   -/401
  far       401  -      403     -      -     -       -     -    -      -   ok      -/401   -/401
""")

PUT_AGENT = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     403    403   403     403   403  403    403 apart   403/401 403/401
  agent     401  ok     403     403    ok    403     403   403  403    403 apart   403/401 403/401
  far       401  apart  403     403    403   403     403   403  403    403 ok      403/401 403/401
""")

# Administration: curators without a narrowing.

ADMINISTER = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     403    403   403     403   403  403    403 404     403/401 403/401
  far       401  404    403     403    403   403     403   403  403    403 ok      403/401 403/401
""")

LIST_ADMINISTERED = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     403    403   403     403   403  403    403 -       403/401 403/401
  far       401  -      403     403    403   403     403   403  403    403 ok      403/401 403/401
""")

RUN_SERVER = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     403     403    403   403     403   403  403    403 ok      403/401 403/401
""")

# Workers serve all tenants, so no tenant can drain them.
DRAIN_WORKERS = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  403    403     403    403   403     403   403  403    403 403     403/401 403/401
""")

# Whether workers are running is the same for all tenants and needs no role.
READ_WORKERS = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     ok      ok     ok    ok      ok    ok   ok     ok  ok      ok/401  ok/401
""")

# A token is issued for an API key, never for a token.
ISSUE_TOKEN = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       401  ok     ok      ok     ok    403     403   403  403    403 apart   403/401 403/401
""")

OPEN = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  own       ok   ok     ok      ok     ok    ok      ok    ok   ok     ok  ok      ok      ok
""")

# ADK

READ_ADK = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  adkann    401  ok     403     ok     ok    404     404   ok   404    ok  404     404/401 404/401
  adkbob    401  ok     403     ok     ok    404     404   404  404    404 404     404/401 404/401
  adkfar    401  404    403     404    404   404     404   404  404    404 ok      404/401 404/401
""")

LIST_ADK = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  adkann    401  ok     403     ok     ok    -       -     ok   -      ok  -       -/401   -/401
  adkbob    401  ok     403     ok     ok    -       -     -    -      -   -       -/401   -/401
  adkfar    401  -      403     -      -     -       -     -    -      -   ok      -/401   -/401
""")

# A user without state and an unknown user look alike to unnarrowed principals: an empty state.
READ_ADK_USER = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  adkann    401  ok     403     ok     ok    404     404   ok   404    404 -       404/401 404/401
  adkbob    401  ok     403     ok     ok    404     404   404  404    404 -       404/401 404/401
  adkfar    401  -      403     -      -     404     404   404  404    404 ok      404/401 404/401
""")

# A new session of the target's user. The answer shows the session, so it needs the role subscriber too.
CREATE_ADK = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  adkann    401  ok     403     403    ok    403     403   ok   403    403 apart   403/401 403/401
  adkbob    401  ok     403     403    ok    403     403   403  403    403 apart   403/401 403/401
  adkfar    401  apart  403     403    apart 403     403   403  403    403 ok      403/401 403/401
""")

CHANGE_ADK = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  adkann    401  ok     403     403    ok    403     403   ok   403    ok  404     403/401 403/401
  adkbob    401  ok     403     403    ok    403     403   403  403    403 404     403/401 403/401
  adkfar    401  404    403     403    404   403     403   403  403    403 ok      403/401 403/401
""")

APPEND_ADK = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  adkann    401  ok     ok      403    ok    403     403   ok   403    ok  404     403/401 403/401
  adkbob    401  ok     ok      403    ok    403     403   403  403    403 404     403/401 403/401
  adkfar    401  404    404     403    404   403     403   403  403    403 ok      403/401 403/401
""")

# Deleting a session that does not exist succeeds, as with ADK's own services.
DELETE_ADK = matrix("""
           none curator emitter subscr agent session s+cur user s+user adk foreign gone    again
  adkann    401  ok     ok      403    ok    403     403   ok   403    ok  apart   403/401 403/401
  adkbob    401  ok     ok      403    ok    403     403   403  403    403 apart   403/401 403/401
  adkfar    401  apart  apart   403    apart 403     403   403  403    403 ok      403/401 403/401
""")

# Readers of the markers


def readers(table: Matrix, target: str) -> frozenset[str]:
    return frozenset(kind for kind, outcomes in table[target].items() if outcomes == {"ok"})


_EVERYTHING = frozenset(("curator",))
_OWN_CURATORS = frozenset(("curator", "s+cur"))
_BY_MATRIX: Mapping[str, Matrix] = {
    "crumb": READ_CRUMB,
    "answer": READ_CRUMB,
    "model": READ_CRUMB,
    "note": READ_CRUMB,
    "title": READ_SESSION,
    "state": READ_SESSION,
    "message": READ_SESSION,
    "trigger": READ_SESSION,
    "selector": LIST_SELECTORS,
    "tenant": LIST_ADMINISTERED,
    "letter": LIST_ADMINISTERED,
    "config": READ_CONFIGS,
    "adkstate": READ_ADK,
    "adkevent": READ_ADK,
    "adkuser": READ_ADK_USER,
}
_BY_KIND: Mapping[str, frozenset[str]] = {
    "secretstate": _OWN_CURATORS,
    "credential": _OWN_CURATORS,
    "privatestate": _OWN_CURATORS | {"agent"},
    "adkcred": _EVERYTHING,
    "adkapp": frozenset(("curator", "subscr", "agent")),
    "prompt": frozenset(("curator", "subscr", "agent")),
}
_FOREIGN = frozenset(("foreign",))


def readers_of(kind: str, target: str) -> frozenset[str]:
    """Return the kinds of principals that may read a marker."""
    if (kind, target) == ("crumb", "freeann"):
        # The context of a user's session shows the user's breadcrumbs without a session to tokens of that user.
        return readers(READ_CRUMB, target) | {"s+user"}
    if target in ("far", "selfar", "adkfar"):
        return _FOREIGN
    return readers(_BY_MATRIX[kind], target) if kind in _BY_MATRIX else _BY_KIND[kind]


# Rows


@dataclass(frozen=True)
class Row:
    """How to send one operation to a target, and the expected outcomes."""

    operation: str
    outcomes: Matrix
    id: str = ""
    """Kind of id that replaces `{id}` in the path."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Placeholders of the path with the same value for every target."""
    body: Callable[[Target], Any] | None = None
    queries: Callable[[Target], list[dict[str, str]]] = lambda target: [{}]
    """The queries to try. The outcome must be the same for all of them."""
    destroys: bool = False
    """Whether a success destroys data that other cells need."""
    shows: str = ""
    """The kind of marker, or with an @ the kind of id, that a successful response contains."""

    def path(self, template: str, target: Target) -> str:
        kinds = {"id": self.id, "message_id": "message", "user": "user", "session": "adk", "name": "asset"}
        fixed = {"app": APP, **self.names}

        def text(found: re.Match[str]) -> str:
            name = found.group(1)
            return quote(fixed[name] if name in fixed else target[kinds[name]], safe=":")

        return re.sub(r"{(\w+)}", text, template)


def _posted(target: Target) -> Any:
    tags = [f"session:{target.session}"] if target.session else []
    return {"schema_name": "note.v1", "title": "new", "tags": tags, "context": {"text": "new"}}


def _listed_by(target: Target) -> list[dict[str, str]]:
    more = {"include_context": "true", "limit": "500"}
    by_session = [{"session_id": target.session, **more}] if target.session else []
    return [{"tag": f"t:{target.name}", **more}, *by_session, more]


def _feedback_by(target: Target) -> list[dict[str, str]]:
    return [
        {},
        {"rating": "down", "model": marker("model", target.name)},
        {"session_id": str(target.session)},
    ]


def _streamed_by(target: Target) -> list[dict[str, str]]:
    return [{"session_id": target.session} if target.session else {"tag": f"t:{target.name}"}, {}]


def _sessions_by(target: Target) -> list[dict[str, str]]:
    searches = [{"q": marker(kind, target.name)} for kind in ("title", "message")]
    return [{"limit": "100"}, *searches, *([{"user_id": target.user}] if target.user else [])]


def _new_session(target: Target) -> Any:
    return {"id": f"s-new-{token_hex(4)}", **({"user_id": target.user} if target.user else {})}


def _preview(target: Target) -> Any:
    return {"session_id": target.session, "config": CONTEXT_CONFIG, "trigger_id": None}


def _try(target: Target) -> Any:
    trigger = {"schema_name": "user.message.v1"}
    definition = {"agent_id": "tried", "subscriptions": {"selectors": [trigger]}}
    return {"definition": definition, "message": "Hello"}


def _test(target: Target) -> Any:
    return {"session_id": target.session, "config": CONTEXT_CONFIG}


def _whole(target: Target) -> list[dict[str, str]]:
    return [{}, {"whole": "true"}]


_SELECTOR = {"schema_name": "note.v1"}
_ADK_EVENT = {"author": "user", "content": {"role": "user", "parts": [{"text": "new"}]}}

_CORE: tuple[Row, ...] = (
    Row("listSessions", LIST_SESSIONS, queries=_sessions_by, shows="title"),
    Row("createSession", CREATE_SESSION, body=_new_session),
    Row("getSession", READ_SESSION, id="session", shows="title"),
    Row("changeSession", WRITE_SESSION, id="session", body=lambda target: {"title": "new"}),
    Row("deleteSession", WRITE_SESSION, id="session", destroys=True),
    Row("listMessages", READ_SESSION, id="session", shows="message"),
    Row("getMessage", without(READ_SESSION, "adkann", "holder"), id="session", shows="message"),
    Row("getChain", without(READ_SESSION, "adkann", "holder"), id="session", shows="message"),
    Row("postMessage", POST_MESSAGE, id="session", body=lambda target: {"message": "new"}),
    Row("forkSession", FORK_SESSION, id="session", body=lambda target: {}),
    Row(
        "retryTurn",
        without(WRITE_SESSION, "adkann", "holder"),
        id="session",
        body=lambda target: {"message_id": target["message"]},
    ),
    Row("createBreadcrumb", CREATE_CRUMB, body=_posted),
    Row("listBreadcrumbs", LIST_CRUMBS, queries=_listed_by, shows="crumb"),
    Row("getBreadcrumb", READ_CRUMB, id="crumb", shows="crumb"),
    Row("getBreadcrumbFull", READ_CRUMB, id="crumb", shows="crumb"),
    Row("getBreadcrumbHistory", READ_CRUMB, id="crumb", shows="crumb"),
    Row("updateBreadcrumb", WRITE_CRUMB, id="crumb", body=lambda target: {"title": "new"}),
    Row("deleteBreadcrumb", WRITE_CRUMB, id="crumb", destroys=True),
    Row("rateAnswer", RATE_ANSWER, id="rated", body=lambda target: {"rating": "up"}, shows="@rated"),
    Row("getFeedback", of_sessions(READ_CRUMB), id="rated", shows="@rated"),
    Row("withdrawFeedback", RATE_ANSWER, id="rated"),
    Row("listFeedback", of_sessions(LIST_CRUMBS), queries=_feedback_by, shows="note"),
    Row("countFeedback", of_sessions(LIST_CRUMBS), queries=_feedback_by, shows="model"),
    Row("getUsage", READ_USAGE, queries=lambda target: [{"session_id": target["session"]}]),
    Row("streamEvents", LIST_CRUMBS, queries=_streamed_by, shows="crumb"),
    Row("saveSelector", SAVE_SELECTOR, body=lambda target: _SELECTOR),
    Row("listSelectors", LIST_SELECTORS, shows="selector"),
    Row("replaceSelector", WRITE_SELECTOR, id="selector", body=lambda target: _SELECTOR),
    Row("deleteSelector", WRITE_SELECTOR, id="selector", destroys=True),
    Row("listAgents", LIST_AGENTS, shows="@agent"),
    Row("getAgent", READ_AGENT, id="agent", shows="@agent"),
    Row("putAgent", PUT_AGENT, id="agent", body=lambda target: {"roles": ["emitter"]}),
    Row("deleteAgent", ADMINISTER, id="agent", destroys=True),
    Row("listTenants", LIST_ADMINISTERED, shows="tenant"),
    Row("getTenant", ADMINISTER, id="tenant", shows="tenant"),
    Row("putTenant", ADMINISTER, id="tenant", body=lambda target: {"name": "new"}),
    Row("renameTenant", ADMINISTER, id="tenant", body=lambda target: {"name": "new"}),
    Row("deleteTenant", ADMINISTER, id="tenant", destroys=True),
    Row("listDeadLetters", LIST_ADMINISTERED, shows="letter"),
    Row("retryDeadLetter", ADMINISTER, id="letter", destroys=True),
    Row("discardDeadLetter", ADMINISTER, id="letter", destroys=True),
    Row("operations", RUN_SERVER),
    Row("checks", RUN_SERVER, queries=lambda target: [{}, {"models": "true"}]),
    Row("listWorkers", RUN_SERVER),
    Row("loadHistory", RUN_SERVER),
    Row("drainWorkers", DRAIN_WORKERS, names={"id": "runner-1"}),
    Row("runningWorkers", READ_WORKERS),
    Row("runHygiene", RUN_SERVER),
    Row("hygieneStats", RUN_SERVER),
    Row("issueToken", ISSUE_TOKEN, body=lambda target: {"session_id": target.session, "user_id": "ann"}),
    *(Row(operation, OPEN) for operation in ("health", "ready", "metrics", "openapi", "docs")),
)

_CONTEXTS: tuple[Row, ...] = (
    Row(
        "explainContext",
        READ_CONTEXT,
        id="context",
        queries=lambda target: [{}, {"parts": "true"}],
        shows="trigger",
    ),
    Row(
        "getReceipt",
        READ_CONTEXT,
        id="proof",
        queries=lambda target: [{}, {"verify": "true"}],
        shows="trigger",
    ),
    Row("replayAnswer", REPLAY, id="proof", body=lambda target: {}),
    Row("recordSession", without(REPLAY, "nocontext"), id="session", shows="message"),
    Row("previewContext", without(READ_SESSION, "adkann", "again", "holder"), body=_preview, shows="trigger"),
    Row("testContextConfig", READ_SESSION, body=_test),
    Row("listContextConfigs", READ_CONFIGS, shows="config"),
    Row("checkContextConfig", READ_PUBLIC, body=lambda target: {"text": "{}"}),
    Row("contextConfigSchema", READ_PUBLIC),
    Row("contextConfigValues", READ_CONFIGS),
    Row("listModels", READ_PUBLIC),
    Row("listAnsweringAgents", READ_PUBLIC),
    Row("listAgentsInForce", without(READ_CONFIGS, "far")),
    Row("agentDefinitionSchema", READ_PUBLIC),
    Row("checkAgentDefinition", READ_PUBLIC, body=lambda target: {"text": "{}"}),
    Row("tryAgentDefinition", TRY_AGENT, body=_try),
    Row("readContextConfig", without(READ_CONFIGS, "far")),
    Row("replaceContextConfig", WRITE_CONFIG_FILE, body=lambda target: {"text": "{}"}),
    Row("contextConfigLog", without(READ_CONFIGS, "far")),
    Row("pastContextConfig", READ_PAST_CONFIG, names={"digest": "0123456789abcdef"}),
    Row("rollBackContextConfig", ROLL_BACK_CONFIG, body=lambda target: {"digest": "0123456789abcdef"}),
)

_ADK: tuple[Row, ...] = (
    Row("createAdkSession", CREATE_ADK, body=lambda target: {}),
    Row("listAdkSessions", LIST_ADK, queries=_whole, shows="adkstate"),
    Row("listAdkSessionsOfApp", LIST_ADK, queries=_whole, shows="adkstate"),
    Row("getAdkSession", READ_ADK, queries=_whole, shows="adkevent"),
    Row(
        "createAdkSessionWithId",
        CREATE_ADK,
        destroys=True,
        names={"session": "new"},
        body=lambda target: {"state": {"step": 1}},
    ),
    Row("changeAdkState", CHANGE_ADK, body=lambda target: {"stateDelta": {"step": 2}}),
    Row("deleteAdkSession", DELETE_ADK, destroys=True),
    Row("appendAdkEvent", APPEND_ADK, body=lambda target: _ADK_EVENT),
    Row("getAdkUserState", READ_ADK_USER, queries=_whole, shows="adkuser"),
)

_PAGE: tuple[Row, ...] = (
    Row("startPage", OPEN),
    Row("pageAsset", OPEN),
    Row("readGuide", OPEN, names={"name": "tutorial.md"}),
)

BELOW_API = "BelowApi"
"""Suffix of operation ids. Every ADK operation exists a second time below /api."""

TABLE: Mapping[str, Row] = {
    row.operation: row
    for row in (
        *_CORE,
        *_CONTEXTS,
        *_ADK,
        *(replace(row, operation=row.operation + BELOW_API) for row in _ADK),
        *_PAGE,
    )
}
