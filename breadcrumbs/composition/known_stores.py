"""Remembers on this machine which store a server contained when a process last used it.

A process that starts cannot tell an emptied server from a new one by looking at it. So each process that runs on a
store writes the identity of the store into a small file in the data directory, one per server and namespace. The next
process compares it. A machine without this file, such as a new container, accepts any store, unless the setting
`store_id` names one.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import structlog

_log = structlog.get_logger("breadcrumbs.store")


@dataclass(frozen=True, slots=True)
class KnownStore:
    """File with the identity of the store that a server contained."""

    folder: Path
    address: str
    """Address of the server, without a password."""
    namespace: str

    @property
    def path(self) -> Path:
        name = sha256(f"{self.address}\n{self.namespace}".encode()).hexdigest()[:16]
        return self.folder / f"{name}.json"

    def recall(self) -> str | None:
        """Return the remembered identity, or None."""
        try:
            identity = json.loads(self.path.read_bytes())["store_id"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return identity if isinstance(identity, str) and identity else None

    def remember(self, identity: str) -> None:
        """Write the identity. Without permission to write, nothing is remembered."""
        if self.recall() == identity:
            return
        document = {"address": self.address, "namespace": self.namespace, "store_id": identity}
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Written to another file first: several processes can start at the same time.
            descriptor, temporary = tempfile.mkstemp(dir=self.folder, suffix=".new")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=2)
            os.replace(temporary, self.path)
        except OSError as error:
            _log.debug("the identity of the store is not remembered on this machine", error=str(error))
