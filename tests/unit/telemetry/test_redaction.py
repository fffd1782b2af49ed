"""Reasons in the log are short and do not quote messages."""

from __future__ import annotations

from breadcrumbs.runtime.telemetry.redaction import hide_messages, log_reason
from breadcrumbs.runtime.workers.errors import TurnFailed


def test_a_quoted_message_is_hidden_and_the_rest_stays() -> None:
    error = TurnFailed("big: invalid content 'the launch code is 4711' at position 3")
    assert (
        log_reason(error, ["Note: the launch code is 4711, keep it"])
        == "big: invalid content '…' at position 3"
    )


def test_a_short_message_is_hidden_as_a_whole() -> None:
    assert hide_messages("cannot parse 'PIN 4711' here", ["PIN 4711"]) == "cannot parse '…' here"


def test_a_cut_quotation_is_hidden_too() -> None:
    secret = "a very long and very private story about my neighbour and her dog"
    assert "private" not in hide_messages(f"rejected: {secret[:40]}…", [secret])


def test_a_reason_is_one_short_line() -> None:
    reason = log_reason(TurnFailed("first\nsecond\x1b[31m " + "x" * 9_000))
    assert len(reason) == 200 and "\n" not in reason and "\x1b" not in reason
    assert reason.startswith("first second")


def test_the_text_of_a_foreign_error_is_not_logged() -> None:
    assert log_reason(ValueError("cannot parse 'something private'")) == "ValueError"


def test_a_reason_without_messages_stays_as_it_is() -> None:
    assert log_reason(TurnFailed("no answer within 30 s"), []) == "no answer within 30 s"
