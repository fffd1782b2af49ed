"""Reads contexts through the HTTP API, for `crumb context …`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from breadcrumbs.cli.client import next_page, path_of, send_json
from breadcrumbs.cli.id_prefixes import MAX_CANDIDATES, choose_id, find_message, is_id_prefix
from breadcrumbs.cli.output import CommandError, UsageError
from breadcrumbs.context_builder.config_checks import ConfigComplaint
from breadcrumbs.context_builder.explanation import ExplainedItem, ExplainedLeftOut, Explanation
from breadcrumbs.context_builder.item_cuts import Cut
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT, AGENT_RESPONSE

if TYPE_CHECKING:
    from breadcrumbs.client.sync import Client

T = TypeVar("T")

_CONSUMER = "consumer:"


@dataclass(frozen=True, slots=True)
class ShownContext:
    """An explained context, optionally with the content that the model was shown."""

    explanation: Explanation
    parts: list[dict[str, Any]] | None = None
    same: bool = False
    """Whether `parts` is complete, byte for byte."""
    gone: list[str] = field(default_factory=list)
    """Ids of items that no longer exist."""
    receipt: dict[str, Any] | None = None
    """The receipt of the answer, with the complete prompt. None if there is no answer yet."""


class ServerContexts:
    """Reads the contexts of one server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def explain(
        self, of: str, version: int | None = None, consumer: str | None = None, *, parts: bool = False
    ) -> ShownContext:
        """Explain a context. `of` is a session, or the id of a context or of an answer, or the beginning of it."""
        id, of_answer = self._find(of, consumer)
        return self._explain_id(id, version or of_answer, parts=parts)

    def explain_trigger(self, session: str, consumer: str, trigger_id: str) -> Explanation:
        """Explain the context that was built for a message. Without one, explain the newest of the session."""
        for context in self._contexts_of(session):
            if consumer not in _consumers_of(context):
                continue
            for version in self._versions(context["id"]):
                if version.get("context", {}).get("trigger_id") == trigger_id:
                    return self._explain_id(context["id"], version["version"]).explanation
            return self._explain_id(context["id"], None).explanation
        raise CommandError(
            f"session {session!r} has no context of {consumer} to compare with: leave --diff out"
        )

    def preview(self, session: str, config: Any, consumer: str, trigger_id: str | None) -> ShownContext:
        """Build a context with another config, the content of a config file. Nothing is written."""
        body: dict[str, Any] = {"session_id": session, "config": config, "consumer_id": consumer}
        if trigger_id is not None:
            body["trigger_id"] = find_message(self._client, session, trigger_id)
        document = send_json(self._client, "POST", "/contexts/preview", body).json()
        return ShownContext(_explanation(document), document["parts"], same=True)

    def warnings(self, text: str) -> list[ConfigComplaint]:
        """Return the settings of a valid config text that have no effect on this server."""
        found = send_json(self._client, "POST", "/contexts/check", {"text": text}).json()["warnings"]
        return [ConfigComplaint(one["where"], one["line"], one["column"], one["message"]) for one in found]

    def _explain_id(self, id: str, version: int | None, *, parts: bool = False) -> ShownContext:
        """Read all pages of an explanation."""
        wanted = {"version": None if version is None else str(version), "parts": "true" if parts else None}
        params = {name: value for name, value in wanted.items() if value is not None}
        path = path_of("contexts", id, "explain")
        document = first = self._client.request("GET", path, params=params).json()
        while (cursor := document.get("next_cursor")) is not None:
            document = self._client.request("GET", path, params={**params, "cursor": cursor}).json()
            for name in ("items", "left_out", *(("parts",) if parts else ())):
                first[name] = first[name] + document[name]
        shown = first.get("parts") if parts else None
        gone = [item["id"] for item in first["items"] if item.get("gone")]
        return ShownContext(_explanation(first), shown, same=first.get("parts_as_shown", False), gone=gone)

    def _find(self, of: str, consumer: str | None) -> tuple[str, int | None]:
        """Find a context by its id, its answer, or its session and consumer. Returns its id and its version.

        The version is None unless an answer names it.
        """
        contexts = self._contexts_of(of)
        if not contexts and (id := self._context_with_id(of)) is not None:
            return id, None
        if not contexts and (found := self._context_of_answer(of)) is not None:
            return found
        by_consumer: dict[str, str] = {}
        for context in contexts:
            for name in _consumers_of(context):
                by_consumer.setdefault(name, context["id"])
        return choose_context(of, by_consumer, consumer), None

    def _context_with_id(self, text: str) -> str | None:
        """Find a context by its id or the beginning of it."""
        from breadcrumbs.client.errors import InvalidInput, NotFound

        if not is_id_prefix(text):
            try:
                found = self._client.request("GET", path_of("breadcrumbs", text)).json()
            except (InvalidInput, NotFound):
                return None
            return None if found["schema_name"] == AGENT_RESPONSE else str(found["id"])
        recent = self._client.list(
            schema_name=AGENT_CONTEXT, include_context=False, sort="-updated_at", limit=MAX_CANDIDATES
        )
        candidates = [(crumb.id, crumb.session_id or "") for crumb in recent]
        if not any(id.startswith(text.lower()) for id, _ in candidates):
            return None
        return choose_id(text, candidates, "context")

    def _context_of_answer(self, text: str) -> tuple[str, int | None] | None:
        """Find the context that an answer was made with, by the id of the answer or the beginning of it."""
        from breadcrumbs.client.errors import InvalidInput, NotFound

        if is_id_prefix(text):
            recent = self._client.list(
                schema_name=AGENT_RESPONSE, include_context=False, sort="-updated_at", limit=MAX_CANDIDATES
            )
            candidates = [(crumb.id, crumb.title) for crumb in recent]
            if not any(id.startswith(text.lower()) for id, _ in candidates):
                return None
            text = choose_id(text, candidates, "answer")
        try:
            found = self._client.request("GET", path_of("breadcrumbs", text)).json()
        except (InvalidInput, NotFound):
            return None
        return context_of_answer(found["schema_name"], found["context"])

    def _contexts_of(self, session: str) -> list[Mapping[str, Any]]:
        """Return the contexts of a session, the most recently updated first."""
        found = self._client.list(session=session, schema_name=AGENT_CONTEXT, sort="-updated_at")
        return [crumb.document for crumb in found]

    def _versions(self, id: str) -> list[dict[str, Any]]:
        path: str | None = path_of("breadcrumbs", id, "history")
        versions: list[dict[str, Any]] = []
        while path is not None:
            reply = self._client.request("GET", path)
            versions += reply.json()
            path = next_page(reply)
        return versions


def context_of_answer(schema_name: str | None, content: Mapping[str, Any]) -> tuple[str, int | None] | None:
    """Return the id and the version of the context that an answer was made with. None if it is not an answer."""
    if schema_name != AGENT_RESPONSE:
        return None
    if (id := content.get("context_id")) is None:
        raise CommandError(
            "this answer has no context: its agent fetches its own breadcrumbs. crumb verify and crumb replay read its "
            "prompt"
        )
    return str(id), content.get("context_version")


def choose_context(session: str, by_consumer: Mapping[str, T], consumer: str | None) -> T:
    """Choose one of the contexts of a session by its consumer."""
    if not by_consumer:
        raise CommandError(
            f"session {session!r} has no context: a context is built when a message arrives. `crumb sessions list` "
            "lists the sessions"
        )
    names = ", ".join(by_consumer)
    if consumer is None:
        if len(by_consumer) > 1:
            raise UsageError(
                f"session {session!r} has contexts of several consumers: choose one with --consumer ({names})"
            )
        return next(iter(by_consumer.values()))
    if consumer not in by_consumer:
        raise CommandError(
            f"session {session!r} has no context of {consumer}, but it has contexts of {names}"
        )
    return by_consumer[consumer]


def _consumers_of(context: Mapping[str, Any]) -> list[str]:
    return [tag.removeprefix(_CONSUMER) for tag in context["tags"] if tag.startswith(_CONSUMER)]


def _explanation(document: Mapping[str, Any]) -> Explanation:
    """Parse an explanation. Fields of a newer server are ignored."""
    known = _known_fields(Explanation, document)
    known["items"] = [_item(item) for item in document["items"]]
    known["left_out"] = [
        ExplainedLeftOut(**_known_fields(ExplainedLeftOut, left)) for left in document["left_out"]
    ]
    return Explanation(**{"session_id": None} | known)


def _item(document: Mapping[str, Any]) -> ExplainedItem:
    known = _known_fields(ExplainedItem, document) | {"matched": tuple(document.get("matched", ()))}
    if (cut := document.get("cut")) is not None:
        known["cut"] = Cut(cut["kept"], cut["of"])
    return ExplainedItem(**known)


def _known_fields(kind: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    names = {entry.name for entry in fields(kind)}
    return {name: value for name, value in document.items() if name in names}
