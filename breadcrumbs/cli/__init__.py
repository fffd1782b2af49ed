"""The command line program `crumb`."""

from __future__ import annotations


def main() -> None:
    """Run the program. Imports are made inside functions, so that `--help` does not load a web framework."""
    import io
    import os
    import sys

    # httpx imports its own command line with rich and pygments, which takes 200 ms. This entry makes that import fail,
    # and httpx then works as if it was installed without its extra `cli`.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]

    # Pipes and files get UTF-8, as JSON requires. A terminal keeps its encoding and shows ? for other characters.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            stream.reconfigure(errors="replace")
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")

    try:
        from breadcrumbs.cli.program import build_program, modules_for

        if "_CRUMB_COMPLETE" in os.environ:  # a shell asks for completions
            from breadcrumbs.cli.completion import complete_quietly

            complete_quietly(build_program())
        build_program(modules_for(sys.argv[1:]))(prog_name="crumb")
    except KeyboardInterrupt:  # during the imports, before `Commands.invoke` handles it
        sys.exit(130)
