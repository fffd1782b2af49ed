"""Sessions: creation, access, messages, forks, retries and outcomes.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "cancellations",
    "chains",
    "feedback",
    "feedback_lists",
    "forks",
    "messages",
    "open_turns",
    "outcome_matching",
    "outcomes",
    "pauses",
    "retries",
    "search",
    "sessions",
    "tool_responses",
    "wait_for",
]
