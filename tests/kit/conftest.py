"""The fixtures of the pytest plugin, also in an environment that was installed before the plugin existed."""

from __future__ import annotations

from breadcrumbs.testing.plugin import crumb_server, crumbs

__all__ = ["crumb_server", "crumbs"]
