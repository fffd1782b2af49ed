"""Event streams inside a process: fan-out of values to subscribers, and waiting for an answer.

`hub.py` reads and fans out, `subscription.py` is one subscriber's queue, `catch_up.py` replays the log for subscribers
that resume, `condition_queues.py` and `conditions.py` evaluate conditions, `watch.py` waits for an answer.
"""
