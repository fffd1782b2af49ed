"""Breadcrumbs, sessions and records in Redis: keys, scripts, indexes, listing, history.

Start with `store.py` (writes and reads), `keys.py` (the key schema) and `lua/` (the scripts that write).
`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "archive",
    "batched_reads",
    "breadcrumb_scan",
    "cursors",
    "dead_letter_store",
    "edits",
    "expiry",
    "fence",
    "history",
    "housekeeping",
    "identity_watch",
    "indexes",
    "keys",
    "lane_counts",
    "lookup",
    "offered_models",
    "opening",
    "options",
    "placement",
    "published_agents",
    "published_configs",
    "quotas",
    "record",
    "records",
    "reduction",
    "running_answers",
    "scan",
    "session_deletion",
    "session_facts",
    "session_store",
    "state",
    "store",
    "turn_retries",
    "worker_records",
    "write_cache",
    "written",
]
