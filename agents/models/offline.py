"""The offline model: the default model, which needs no key and no network.

It is not a language model. It lists and counts the messages of its prompt, calls tools, and otherwise repeats the last
message. So its answers show which messages an agent received. It keeps no data between calls. So an answer can only
contain messages of its own context, and the same request always gets the same reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from breadcrumbs.agents.models.base import (
    ATTACHMENT,
    ModelReply,
    ModelRequest,
    OnDelta,
    PromptMessage,
    ToolSpec,
)
from breadcrumbs.agents.models.offline_tools import describe_results, requested_calls
from breadcrumbs.agents.models.streaming import stream_words

_MAX_REQUEST_CHARACTERS = 300  # a longer message is echoed, not interpreted
_MAX_ECHO_CHARACTERS = 2_000

_BACKGROUND = "background"  # name of the prompt messages with reference material

_RECITE = re.compile(
    r"""(?ix)
    \bwhat \s+ (?:did|have|had) \s+ i \s+ (?:\w+ \s+){0,2}?
        (?:say|said|write|written|tell|told|ask|asked|mention|mentioned) \b
    | \bwhat (?:'s|\s+is|\s+was|\s+were) \s+ my \s+
        (?:(?:last|first|previous|earlier) \s+)? (?:message|question)s? \b
    | \b(?:what|which) \s+ .{0,24}? (?:thing|message)s? \s+ (?:that \s+)? i \s+ (?:said|wrote|sent) \b
    | \bwhat \s+ (?:have|did|were|are) \s+ we \s+ (?:been \s+)? (?:talk|discuss|speak|spoke|chat|say|said)
    | \b(?:list|show|repeat|recite|quote|recall|remember) \s+ (?:me \s+)? (?:all \s+ (?:of \s+)?)?
        (?:my|our|everything|what \s+ (?:i|we)|the \s+ (?:messages|conversation|chat|session)) \b
    | \bwhat \s+ do \s+ you \s+ (?:remember|know) \b
    | ^\W* (?:please \s+)? (?:show \s+)? (?:me \s+)?
        (?:(?:the|our|my|this|chat|conversation|session|message) \s+)* history \W*$
    | ^\W* (?:please \s+)? (?:repeat|recite|recap|recall|summar(?:y|i[sz]e))
        (?:[\s,]+ (?:that|it|this|please|again))* \W*$
    """
)
_RECITE_MY_ANSWERS = re.compile(
    r"""(?ix)
    \bwhat \s+ (?:did|have|had) \s+ you \s+ (?:\w+ \s+){0,2}? (?:say|said|answer|repl|tell|told)
    | \bwhat (?:\s+was|\s+were|\s+is|'s) \s+ your \s+ (?:(?:last|first|previous) \s+)? (?:answer|repl|message)
    """
)
_ONLY_FIRST = re.compile(r"(?i)\bfirst\b")
_ONLY_LAST = re.compile(r"(?i)\b(?:last|just|previous)\b")
_SAY = re.compile(r"(?is)^\W*(?:please )?(?:repeat after me|say|echo)\s*[:,]\s*(?P<words>.*\S)\s*$")
_COUNT = re.compile(
    r"(?i)\bhow many (?:messages|questions|things|times)\b"
    r"|\bcount (?:(?:my|our|the|all) )*messages\b|\bmessage count\b"
)
_SEE = re.compile(
    r"(?i)\bwhat (?:do|can|did) you see\b|\bwhat were you given\b|\bwhat is (?:in )?your (?:context|prompt)\b"
    r"|\bshow (?:me )?(?:your|the) (?:context|prompt)\b"
)
_HELP = re.compile(r"(?i)^\W*(?:help|what can you do|who are you|what are you)\W*$")
_GREETING = re.compile(
    r"(?i)^\W*(?P<word>hello|hi|hey|howdy|greetings|good (?:morning|afternoon|evening|day))\b"
)
_THANKS = re.compile(r"(?i)^\W*(?:thanks|thank you|thx)\b.{0,30}$")


class OfflineModel:
    """Lists and counts messages, calls tools, and echoes. `delay` is the pause before each word, in seconds."""

    def __init__(self, *, name: str = "offline", delay: float = 0.0) -> None:
        self.name = name
        self._delay = delay

    async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelReply:
        reply = _reply(request)
        await stream_words(reply.text, on_delta, delay=self._delay)
        return reply

    async def close(self) -> None:
        return None


def _reply(request: ModelRequest) -> ModelReply:
    if results := describe_results(request.messages):
        return _text_reply("\n".join(results))
    received = (
        message
        for message in reversed(request.messages)
        if message.role == "user" and message.name != _BACKGROUND
    )
    current = next(received, None)
    if current is None:
        return _text_reply("I received no message to answer.")
    if current.name is not None:
        return _text_reply(f"I received this from {current.name}: {_quoted(current.content)}")
    if not current.content.strip():
        return _text_reply("Your message was empty, so I have nothing to repeat.")
    if len(current.content) <= _MAX_REQUEST_CHARACTERS:
        answer = _answer(current.content, request)
        if answer is not None:
            return _text_reply(answer) if isinstance(answer, str) else answer
    return _text_reply(_echo(current.content, request))


def _answer(question: str, request: ModelRequest) -> ModelReply | str | None:
    """Return the answer, or None if the question is not understood."""
    if wish := _SAY.match(question):
        return str(wish["words"])
    return (
        _answer_about_conversation(question, request)
        or _call_tools(question, request)
        or _small_talk(question, request)
    )


def _answer_about_conversation(question: str, request: ModelRequest) -> str | None:
    if _RECITE_MY_ANSWERS.search(question):
        return _recite(question, _my_answers(request), "I said")
    if _RECITE.search(question):
        return _recite(question, _earlier_messages(request), "You said")
    if _COUNT.search(question):
        return _count(_earlier_messages(request), request)
    if _SEE.search(question):
        return _describe(_earlier_messages(request), request)
    if _HELP.match(question):
        return f"I am the offline model: no key, no network. {_abilities(request.tools)}"
    return None


def _earlier_messages(request: ModelRequest) -> list[PromptMessage]:
    """Return the messages of the user before the question."""
    own = [message for message in request.messages if message.role == "user" and message.name is None]
    return own[:-1]


def _call_tools(question: str, request: ModelRequest) -> ModelReply | str | None:
    calls, missing = requested_calls(question, request)
    if missing:
        return f"For that I need a {' and a '.join(missing)}, which is not among my tools."
    if calls:
        return ModelReply(text="", tool_calls=tuple(calls), finish_reason="tool_calls")
    return None


def _small_talk(question: str, request: ModelRequest) -> str | None:
    if greeting := _GREETING.match(question):
        word = greeting["word"].capitalize()
        if question[greeting.end() :].strip(" \t\n!.,?"):
            return f"{word}! You wrote: {_quoted(question)}"
        return f"{word}! {_abilities(request.tools)}"
    if _THANKS.match(question):
        return "You are welcome."
    return None


def _recite(question: str, messages: Sequence[PromptMessage], intro: str) -> str:
    if not messages:
        return f"{intro} nothing before this: your question is the first message that I received."
    if _ONLY_FIRST.search(question):
        return f"{intro} first: {_quoted(messages[0].content)}"
    if _ONLY_LAST.search(question):
        return f"{intro} last: {_quoted(messages[-1].content)}"
    if len(messages) == 1:
        return f"{intro}: {_quoted(messages[0].content)}"
    lines = [f"{number}. {_quoted(message.content)}" for number, message in enumerate(messages, start=1)]
    return "\n".join([f"{intro} {len(messages)} things before this:", *lines])


def _count(before: Sequence[PromptMessage], request: ModelRequest) -> str:
    return f"I received {_count_user_messages(before)}, this one included, and {_count_own_answers(request)}."


def _describe(before: Sequence[PromptMessage], request: ModelRequest) -> str:
    attached = sum(message.name == ATTACHMENT for message in request.messages)
    others = (
        sum(message.role == "user" and message.name is not None for message in request.messages) - attached
    )
    pages = f"{_counted_noun(attached, 'attached page')}, " if attached else ""
    instructions = sum(message.role == "system" for message in request.messages)
    tools = ", ".join(tool.name for tool in request.tools)
    lines = [
        f"I received {_count_user_messages(before)}, {_count_own_answers(request)}, {pages}"
        f"{_counted_noun(others, 'message')} from elsewhere and {_counted_noun(instructions, 'instruction')}; "
        + (f"my tools: {tools}." if tools else "no tools."),
        *(f"- {_quoted(message.content)}" for message in before),
    ]
    return "\n".join(lines)


def _echo(content: str, request: ModelRequest) -> str:
    if len(content) > _MAX_ECHO_CHARACTERS:
        echo = f"You wrote {len(content):,} characters, beginning with {_quoted(content[:200])}"
    else:
        echo = f"You wrote: {_quoted(content)}"
    # The introduction appears only once in a conversation.
    return echo if _my_answers(request) else f"{echo}\nI am the offline model. {_abilities(request.tools)}"


def _abilities(tools: Iterable[ToolSpec]) -> str:
    able = 'I can list the messages of this session ("what did I say?"), count them ("how many messages?")'
    names = ", ".join(tool.name for tool in tools)
    return f"{able} and use my tools ({names})." if names else f"{able} and repeat what you write."


def _my_answers(request: ModelRequest) -> list[PromptMessage]:
    return [message for message in request.messages if message.role == "assistant" and message.content]


def _count_user_messages(before: Sequence[PromptMessage]) -> str:
    return f"{_counted_noun(len(before) + 1, 'message')} of yours"


def _count_own_answers(request: ModelRequest) -> str:
    return f"{_counted_noun(len(_my_answers(request)), 'answer')} of mine"


def _counted_noun(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def _quoted(text: str) -> str:
    """Quote the text without escaping, so that a search for the text finds it."""
    return f'"{text}"'


def _text_reply(text: str) -> ModelReply:
    return ModelReply(text=text, finish_reason="stop")
