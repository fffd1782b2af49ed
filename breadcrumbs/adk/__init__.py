"""Session service for google-adk (Agent Development Kit) that stores sessions as breadcrumbs.

    from breadcrumbs.adk import BreadcrumbSessionService

    runner = Runner(..., session_service=BreadcrumbSessionService("http://127.0.0.1:8081"))

The service needs google-adk (`pip install breadcrumbs[adk]`). The routes in `http.py` do not, and every Breadcrumbs
server has them. So this package imports the service only when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from breadcrumbs.adk.service import BreadcrumbSessionService, register

__all__ = ["BreadcrumbSessionService", "register"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from breadcrumbs.adk import service

    return getattr(service, name)
