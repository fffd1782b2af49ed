"""Result of a check."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "wrong", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check."""

    check: str
    """Name of the check."""
    status: Status
    message: str
    advice: str = ""
    """How to fix the problem. Empty if there is none."""
    details: dict[str, Any] = field(default_factory=dict)
    """Data for `--json`."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, without empty fields."""
        return {name: value for name, value in asdict(self).items() if value or name == "message"}
