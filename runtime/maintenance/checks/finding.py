"""Result of a check, and the verdict of several results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

Status = Literal["ok", "warning", "error", "unknown", "skipped"]
"""`unknown`: the check could not be made. `skipped`: the check does not apply here."""

Verdict = Literal["ok", "warning", "error", "unknown"]

_PRIVATE: Final = frozenset(("path", "primary", "reason", "url"))
"""Details that only the operator of the installation may see. Messages and advice contain no addresses and paths of
the installation, so that the curator of a tenant may read them."""

_WORST_FIRST: Final[tuple[Verdict, ...]] = ("error", "warning", "unknown")


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check."""

    id: str
    """Stable id of the check, one of `CHECKS`."""
    status: Status
    message: str
    advice: str = ""
    """How to fix the problem. Empty if there is none."""
    details: dict[str, Any] = field(default_factory=dict)
    """Data for `--json`."""
    subject: str = ""
    """The server, kind of worker, model or owner, if a check has several findings."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, without empty fields."""
        return {name: value for name, value in asdict(self).items() if value or name == "message"}

    def as_public_dict(self) -> dict[str, Any]:
        """Return the JSON form for the curators of all tenants."""
        details = {name: value for name, value in self.details.items() if name not in _PRIVATE}
        # The reason of a check that failed can contain the address of the server.
        message = self.message.removesuffix(f": {self.details.get('reason', '')}")
        return replace(self, message=message, details=details).as_dict()


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """Return the worst status. A known problem is worse than a check that could not be made."""
    found = {finding.status for finding in findings}
    return next((status for status in _WORST_FIRST if status in found), "ok")
