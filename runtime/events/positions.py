"""Encrypts stream positions for clients, so that they reveal nothing about other tenants.

A `Position` is one time per lane, and all owners share the lanes. Each encoded position has a random nonce, so that
equal positions look different. A client cannot see whether any event happened between two pings. The key is derived
from the secret of the store and from the owner, so a forged position or a position of another owner cannot be decoded.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import struct
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from breadcrumbs.runtime.errors import InvalidInput
from breadcrumbs.runtime.events.log import Position

_TIME_BYTES: Final = 7
_NONCE_BYTES: Final = 16  # long enough that random nonces never repeat, regardless of the number of positions
_TAG_BYTES: Final = 16
_MAX_KEYS: Final = 10_000  # the cache is cleared above this size; deriving a key costs microseconds


class PositionCodec:
    """Encrypts and decrypts the positions of one store."""

    def __init__(self, secret: bytes, lanes: int) -> None:
        self._secret = secret
        self._length = lanes * _TIME_BYTES
        self._times = struct.Struct(f">{lanes}Q")
        self._ciphers: dict[UUID, AESGCM] = {}

    def encode(self, owner: UUID, position: Sequence[int]) -> str:
        """Encrypt a position for clients of an owner."""
        raw = bytearray(self._times.pack(*position))
        del raw[::8]  # the first byte of each time is 0
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = nonce + self._cipher(owner).encrypt(nonce, raw, None)
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def decode(self, owner: UUID, text: str) -> Position | None:
        """Decrypt a position. Raises InvalidInput if it is not from this store and owner.

        Returns None for the unencrypted positions of older versions, which cannot be trusted.
        """
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except ValueError:
            sealed = b""
        if len(sealed) == self._length:
            return None
        if len(sealed) != self._length + _NONCE_BYTES + _TAG_BYTES:
            raise _unknown_position_error()
        try:
            raw = self._cipher(owner).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
        except InvalidTag:
            raise _unknown_position_error() from None
        return [int.from_bytes(raw[at : at + _TIME_BYTES]) for at in range(0, len(raw), _TIME_BYTES)]

    def _cipher(self, owner: UUID) -> AESGCM:
        cipher = self._ciphers.get(owner)
        if cipher is None:
            if len(self._ciphers) >= _MAX_KEYS:
                self._ciphers.clear()
            key = hmac.new(
                self._secret, b"breadcrumbs stream position" + owner.bytes, hashlib.sha256
            ).digest()
            cipher = self._ciphers[owner] = AESGCM(key)
        return cipher


def _unknown_position_error() -> InvalidInput:
    return InvalidInput(
        "this store did not issue this Last-Event-ID to this owner: omit it to start with new events",
        where="Last-Event-ID",
    )
