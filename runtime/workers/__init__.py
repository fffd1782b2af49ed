"""Workers: handle the events of lanes, with leases, retries and dead letters.

`worker.py` takes lanes and reads their events. `turn_runner.py` runs the handler on them. `leases.py` guarantees that
only one worker can commit in a lane.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "budgets",
    "dead_letters",
    "definitions",
    "errors",
    "failures",
    "leases",
    "retries",
    "turn",
    "turn_spans",
    "worker",
    "worker_info",
]
