"""Workers: leases on lanes, turns, attempts, retries, failures, definitions in force.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "dead_letters",
    "definitions",
    "errors",
    "failures",
    "leases",
    "retries",
    "turn",
    "worker",
]
