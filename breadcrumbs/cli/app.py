"""The program `crumb` with all its commands, for tests, documents and completions."""

from __future__ import annotations

from breadcrumbs.cli.program import build_program

app = build_program()
