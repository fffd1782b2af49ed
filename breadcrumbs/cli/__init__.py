"""The command `crumb`."""

from __future__ import annotations


def main() -> None:
    """Entry point. Nothing is imported before it is needed: `--help` must not wait for a web framework."""
    import io
    import sys

    # httpx loads its own command line, with rich and pygments, just in case: 200 ms that nobody asked for.
    # Without it, httpx is as if it had been installed without that extra.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]

    # JSON is UTF-8 wherever it goes; a terminal of another kind shows what it can.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            stream.reconfigure(errors="replace")
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")

    try:
        from breadcrumbs.cli.app import app

        app(prog_name="crumb")
    except KeyboardInterrupt:  # before the command itself could take care of it
        sys.exit(130)
