"""The result of one check."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "wrong", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check-up found."""

    check: str
    status: Status
    message: str
    advice: str = ""
    """How to mend it; empty where there is nothing to mend."""
    details: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value or name == "message"}
