"""Telemetry of a process: tracing.

`__all__` lists the modules that other packages may import.
"""

__all__ = ["spans", "trace_context", "tracing"]
