"""Filter of an event stream: permissions of the token and conditions of the request."""

from __future__ import annotations

from typing import Final

from breadcrumbs.runtime.access import Principal, policy
from breadcrumbs.runtime.access.redaction import redact_context
from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.breadcrumb.selectors import Selector
from breadcrumbs.runtime.breadcrumb.session_rule import SESSION
from breadcrumbs.runtime.events.event import Event
from breadcrumbs.runtime.hints.jsonpath import SearchBudget
from breadcrumbs.runtime.streams.conditions import Evaluation

_MAX_NAMED_SESSIONS: Final = 20


class StreamFilter:
    """Accepts events that the token may see and that match the selectors.

    An event must match all `selectors`, and one of `any_of` if there are any.
    """

    __slots__ = ("_any_of", "_ended", "_principal", "_selectors", "begins_after", "conditional", "owner_id")

    def __init__(self, principal: Principal, selectors: list[Selector], any_of: list[Selector]) -> None:
        self.owner_id = principal.owner_id
        self._principal = principal
        self._selectors = selectors
        self._any_of = any_of
        self._ended = False
        self.begins_after = 0
        """Events up to this time belong to an earlier session with the name of the token's session."""
        self.conditional = any(selector.context_match for selector in (*selectors, *any_of))
        """Whether a selector has conditions on the content."""

    @property
    def token(self) -> Principal:
        return self._principal

    @property
    def ended(self) -> bool:
        """Whether the session of a narrowed token was deleted. A later session of that name is not shown."""
        return self._ended

    def named_sessions(self) -> list[str]:
        """Return the sessions that the token or the selectors name, at most `_MAX_NAMED_SESSIONS`."""
        names = [] if self._principal.session_id is None else [self._principal.session_id]
        for selector in (*self._selectors, *self._any_of):
            if selector.session_id is not None:
                names.append(selector.session_id)
            tags = (*(selector.all_tags or ()), *(selector.any_tags or ()))
            names += [tag.removeprefix(SESSION) for tag in tags if tag.startswith(SESSION)]
        return list(dict.fromkeys(names))[:_MAX_NAMED_SESSIONS]

    def wants(self, event: Event) -> bool:
        """Return whether the event passes the checks that do not need the content."""
        if 0 < event.at <= self.begins_after:  # 0: a delta, which is not in the log
            return False
        if event.operation == "session_deleted" and event.session_id == self._principal.session_id:
            self._ended = True
        elif self.ended:
            return False
        if not policy.may_see_event(self._principal, event.tags, event.private_to):
            return False
        if not self._selectors and not self._any_of:
            return True
        session = event.session_id
        return all(s.matches_meta(event.schema_name, event.tags, session) for s in self._selectors) and (
            not self._any_of
            or any(s.matches_meta(event.schema_name, event.tags, session) for s in self._any_of)
        )

    def accepts(self, event: Event, evaluation: Evaluation | None) -> bool | None:
        """Return whether the content matches. None: the conditions are too expensive to evaluate.

        `evaluation` is None for a deleted breadcrumb.
        """
        budget = SearchBudget()
        decisions = [
            self._matches(selector, event, evaluation, budget)
            for selector in self._selectors
            if selector.needs_context
        ]
        if self._any_of and False not in decisions:
            decisions.append(self._matches_any(event, evaluation, budget))
        return False if False in decisions else None if None in decisions else True

    def _matches_any(self, event: Event, evaluation: Evaluation | None, budget: SearchBudget) -> bool | None:
        outcome: bool | None = False
        for selector in self._any_of:
            decision = self._matches(selector, event, evaluation, budget)
            if decision:
                return True
            outcome = None if decision is None else outcome
        return outcome

    def _matches(
        self, selector: Selector, event: Event, evaluation: Evaluation | None, budget: SearchBudget
    ) -> bool | None:
        if not selector.needs_context:
            return selector.matches_meta(event.schema_name, event.tags, event.session_id)
        if evaluation is None:
            return False  # deleted: its content is no longer available
        if selector.context_match and not policy.may_read_content(self._principal, evaluation.crumb):
            return False  # receiving the event would reveal the content
        return evaluation.decide(self._principal, selector, budget)

    def shows_context(self, crumb: Breadcrumb) -> bool:
        return policy.may_read_content(self._principal, crumb)

    def redact(self, crumb: Breadcrumb) -> Breadcrumb:
        return redact_context(self._principal, crumb)
