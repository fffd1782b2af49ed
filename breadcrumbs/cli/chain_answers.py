"""Shows the answers of a chain in the terminal: all agents that reacted to a message, and to its answers."""

from __future__ import annotations

from breadcrumbs.cli.chat_display import Display
from breadcrumbs.client.outcomes import ChainIds, answers_in
from breadcrumbs.client.values import Answer, Delta, Event
from breadcrumbs.runtime.schema_names import AGENT_ERROR


class ChainAnswers:
    """Shows the answers to one message. If there are several, each is shown with the name of its agent.

    An answer waits for the next event, because only then is it known that another one follows.
    """

    def __init__(self, display: Display) -> None:
        self._display = display
        self._ids: ChainIds | None = None
        self._waiting: list[Answer] = []
        self._shown: set[str] = set()

    @property
    def message_id(self) -> str:
        """Id of the message. Empty: it is not posted yet."""
        return "" if self._ids is None else self._ids.message_id

    @message_id.setter
    def message_id(self, id: str) -> None:
        self._ids = ChainIds(id)

    def show(self, event: Event) -> None:
        """Show an event, if it belongs to the chain."""
        self.show_waiting()
        if self._ids is None:
            return
        if isinstance(event, Delta):
            if self._ids.has_delta(event):
                self._display.show_piece(event)
        elif self._ids.add(event):
            self._waiting = answers_in(event)
            if event.schema_name == AGENT_ERROR and event.breadcrumb_id is not None:
                agent = event.context.get("agent_id") or "an agent"
                self._display.show_aside(f"{agent} failed")

    def show_waiting(self) -> None:
        """Show the last answer, which is one of several."""
        for answer in self._waiting:
            self._shown.add(answer.id)
            self._display.show_named_answer(answer.agent_id or "agent", answer.text)
        self._waiting = []

    def show_last(self, answer: Answer) -> None:
        """Show the last answer of the chain. If it is the only one, its agent is not named."""
        if self._waiting and self._waiting[0].id != answer.id:
            self.show_waiting()
        self._waiting = []
        if answer.id in self._shown:
            return
        if self._shown:
            self._display.show_named_answer(answer.agent_id or "agent", answer.text)
        else:
            self._display.show_answer(answer.text)
