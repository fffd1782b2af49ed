"""Proofs: rebuild the requests of past answers, compare them with their receipts, and show the complete prompt.

`requests.py` rebuilds, `verification.py` compares, `receipt_view.py` makes the document that people see, and `http.py`
has the operation of the API. `replay.py` calls a model again with the rebuilt prompt, and `replay_http.py` has its
operation. `recording.py` makes a test case from a session, and `recording_http.py` has its operation.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "http",
    "receipt_view",
    "recording",
    "recording_http",
    "replay",
    "replay_http",
    "replay_models",
    "requests",
    "verification",
]
