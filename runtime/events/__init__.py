"""Events of the store: the value, the log, one reader per process, and deltas.

`event.py` defines the event, `log.py` reads ranges, `reader.py` follows lanes, `bodies.py` loads the breadcrumbs that
events name, `deltas.py` carries pieces of answers, `positions.py` encrypts positions for clients.
"""
