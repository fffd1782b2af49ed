"""JSON of events compared with the models of google-adk, which the server does not install."""

from __future__ import annotations

import types as builtin
import typing
from typing import Any

import pytest
from google.adk.auth.auth_credential import _redact_credential_secrets
from google.adk.cli.cli_eval import _LEGACY_EVAL_SESSION_ID_PREFIX, EVAL_SESSION_ID_PREFIX
from google.adk.events._internal_metadata import INTERNAL_METADATA_PREFIX, RESTORED_EVENT_KEY
from google.adk.events.event import Event
from google.adk.sessions.state import State
from google.adk.utils._function_call_names import CLIENT_FUNCTION_CALL_NAMES
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from breadcrumbs.adk import naming, wire
from breadcrumbs.runtime.breadcrumb.credentials import strip_credentials
from tests.adk.test_service import ODD, everything


def _models() -> tuple[set[str], set[str], set[str]]:
    """Return three sets of wire names of an event: free-form fields, maps to models, names not in camel case."""
    free: set[str] = set()
    keyed: set[str] = set()
    other: set[str] = set()
    seen: set[type[BaseModel]] = set()

    def look(annotation: Any, name: str) -> None:
        origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
        if annotation in (Any, object, dict):
            free.add(name)
        elif origin is dict:
            models = isinstance(inner[1], type) and issubclass(inner[1], BaseModel)
            (keyed if models else free).add(name)
            look(inner[1], name) if models else None
        elif origin in (typing.Union, builtin.UnionType, list, set, tuple, typing.Annotated):
            for part in inner:
                look(part, name)
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            walk(annotation, name)

    def walk(model: type[BaseModel], place: str) -> None:
        if model in seen:
            return
        seen.add(model)
        for field, described in model.model_fields.items():
            alias = described.serialization_alias or described.alias or field
            if alias != to_camel(field):
                other.add(place)
            look(described.annotation, alias)

    walk(Event, "")
    return free, keyed, other


def test_all_free_form_fields_of_an_event_are_listed() -> None:
    """A new version of google-adk with more such fields fails here, before it loses data."""
    free, keyed, other = _models()
    assert free | other == wire.FREE_FORM
    assert keyed == wire.USER_NAMED_KEYS


def test_snake_case_becomes_camel_case_and_camel_case_stays() -> None:
    event = everything().model_copy(deep=True)
    event.actions.requested_auth_configs = {}
    camel = event.model_dump(mode="json", by_alias=True, exclude_none=True)
    snake = event.model_dump(mode="json", by_alias=False, exclude_none=True)
    assert camel != snake
    assert wire.camel_case(snake) == wire.camel_case(camel) == camel
    assert wire.event_of(camel, now=0.0) == camel


def test_field_names_match_those_of_adk() -> None:
    assert (wire.APP, wire.USER, wire.TEMP) == (State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX)
    assert wire.ADKS_OWN_CALLS == CLIENT_FUNCTION_CALL_NAMES
    assert (wire.INTERNAL, wire.RESTORED) == (INTERNAL_METADATA_PREFIX, RESTORED_EVENT_KEY)
    assert set(wire.EVALUATIONS) == {EVAL_SESSION_ID_PREFIX, _LEGACY_EVAL_SESSION_ID_PREFIX}


_words = st.sampled_from(
    [
        *("authType", "auth_type", "token", "apiKey", "api_key", "clientSecret", "name", "args", "response"),
        *(
            "authConfig",
            "auth_config",
            "requestedAuthConfigs",
            "rawAuthCredential",
            "exchanged_auth_credential",
        ),
        *("password", "http", "x"),
    ]
)
_values = st.sampled_from(["oauth2", "http", "API_KEY", "adk_request_credential", "hush", 1, None])
_documents = st.recursive(
    _values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=5),
    max_leaves=20,
)


def _mixes_carriers(value: Any) -> bool:
    """Return whether one object has credentials in two forms. ADK reads only the first, the server each one."""
    if isinstance(value, list):
        return any(map(_mixes_carriers, value))
    if not isinstance(value, dict):
        return False
    ways = [
        value.get("name") == "adk_request_credential",
        "requestedAuthConfigs" in value,
        not value.keys().isdisjoint(("rawAuthCredential", "exchanged_auth_credential")),
    ]
    return sum(ways) > 1 or any(map(_mixes_carriers, value.values()))


@given(_documents)
@example({"requestedAuthConfigs": "oauth2", "rawAuthCredential": {"token": "hush"}})
def test_secret_fields_match_those_of_adk(document: Any) -> None:
    shown, adks = strip_credentials(document), _redact_credential_secrets(document)
    assert strip_credentials(adks) == shown, "something that ADK takes out is still there"
    if not _mixes_carriers(document):
        assert shown == adks
    if shown == document:
        assert shown is document


def test_the_text_of_an_event_is_that_of_its_parts() -> None:
    document = everything().model_dump(mode="json", by_alias=True, exclude_none=True)
    assert wire.text_of(document) == "Words"
    assert wire.text_of({}) == ""
    contents: list[Any] = [None, {}, {"parts": None}, {"parts": [{}]}]
    for content in contents:
        assert wire.text_of({"content": content}) == ""
    assert wire.text_of({"content": {"parts": [{"text": "a"}, {"text": None}, {"text": "\ud800"}]}}) == "a?"


_text = st.text("ab:/%#A3", min_size=1, max_size=4) | st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6
)


@given(st.tuples(_text, _text, _text), st.tuples(_text, _text, _text))
@example(("a", "b:c", "d"), ("a:b", "c", "d"))
@example(("a", "b", "c:d"), ("a", "b:c", "d"))
@example(("a%3Ab", "c", "d"), ("a:b", "c", "d"))
def test_session_names_are_unique(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    keys = [(app, user, id.strip()) for app, user, id in (one, other)]
    if all(key[2] for key in keys):
        first, second = (naming.session_names(*key) for key in keys)
        assert (first.name == second.name) == (keys[0] == keys[1])
        assert (first.of.user_tag == second.of.user_tag) == (keys[0][:2] == keys[1][:2])
        assert (first.of.user_state == second.of.user_state) == (keys[0][:2] == keys[1][:2])
        assert (first.of.app_tag == second.of.app_tag) == (keys[0][0] == keys[1][0])


@pytest.mark.parametrize("key", [key for key in ODD if key[2]])
def test_every_name_is_accepted_by_the_store(key: tuple[str, str, str]) -> None:
    from breadcrumbs.runtime.breadcrumb.session_rule import check_name, check_session_id

    names = naming.session_names(*key)
    for session in (names.name, names.of.app_state, names.of.user_state):
        check_session_id(session)
    for tag in (*names.tags, names.of.app_tag, names.of.user_tag):
        assert len(check_name(tag)) <= 256
