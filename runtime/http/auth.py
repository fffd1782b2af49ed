"""Authentication by signed tokens (JWT, HS256) and API keys.

Without API keys the server runs in development mode. It then listens on this machine only and accepts requests
without a token. Tokens of this mode are signed with a separate key, so that they become invalid when API keys
are configured later.
"""

from __future__ import annotations

import base64
import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, get_args
from urllib.parse import parse_qsl
from uuid import UUID

from joserfc import jwt
from joserfc.jwk import OctKey
from starlette.requests import HTTPConnection

from breadcrumbs.runtime.access import Principal
from breadcrumbs.runtime.breadcrumb.ids import parse_id
from breadcrumbs.runtime.breadcrumb.names import hidden_character
from breadcrumbs.runtime.breadcrumb.session_rule import (
    MAX_TAG_LENGTH,
    USER,
    check_name,
    check_not_message_tag,
    check_session_id,
)
from breadcrumbs.runtime.errors import InvalidInput, Unauthenticated
from breadcrumbs.runtime.settings.settings import ALL_ROLES, DEVELOPER, ApiKey, Role, Settings
from breadcrumbs.runtime.store.store import Store

DEVELOPER_AGENT: Final = UUID("00000000-0000-0000-0000-000000000002")
"""The agent of requests without a token in development mode."""

MAX_TOKEN_BYTES: Final = 8_192
MAX_CACHED_TOKENS: Final = 4_096

_KNOWN_ROLES: Final = frozenset(get_args(Role))
_LOGIN_ADVICE = (
    "get a token from POST /auth/token with your API key in X-API-Key, and send it as Authorization: Bearer"
)
_RENEW_ADVICE = "get a new one from POST /auth/token"
_KEY_ADVICE = "check that it is complete, and that the setting api_keys contains it"


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The principal and the agents of an API key."""

    principal: Principal
    agents: frozenset[UUID]
    """The agents that tokens of this key may act as."""
    digest: bytes = field(repr=False)


class Authenticator:
    """Finds the principal of a request by its credentials."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.development_mode = settings.development_mode
        if settings.token_secret is not None:
            secret = settings.token_secret.get_secret_value().encode()
        else:
            secret = _derive_key(store.secret, b"tokens")
        self._key = OctKey.import_key(
            _derive_key(secret, b"development") if self.development_mode else secret
        )
        self._holders = [_make_key_holder(key, store.secret) for key in settings.api_keys]
        self._developer = Principal(DEVELOPER, DEVELOPER_AGENT)
        self._verified: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()
        """Cache of verified tokens with their principal and expiry, least recently used first."""

    def authenticate(self, request: HTTPConnection, *, query_token: bool = False) -> Principal:
        """Return the principal of a request.

        `query_token` also accepts a token in the query. It is for the event stream only: EventSource cannot send
        headers. Other operations do not accept a token in the query, because URLs appear in logs.
        """
        query: bytes = request.scope["query_string"] if query_token else b""
        return self.identify(dict(request.scope["headers"]), query)

    def identify(self, headers: Mapping[bytes, bytes], query: bytes = b"") -> Principal:
        """Return the principal for the headers and the query of a request."""
        credential = _header_credential(headers) or (_query_token(query) if query else None)
        if credential is None:
            if self.development_mode:
                return self._developer
            raise Unauthenticated(f"the request has no token: {_LOGIN_ADVICE}")
        cached = self._verified.get(credential)
        if cached is not None and cached[1] > time.time():
            self._verified.move_to_end(credential)
            return cached[0]
        holder = self._find_key_holder(credential)
        if holder is not None:
            return holder.principal
        principal, expires = self._verify(credential)
        self._verified[credential] = principal, expires
        if len(self._verified) > MAX_CACHED_TOKENS:
            self._verified.popitem(last=False)
        return principal

    def key_holder(self, headers: Mapping[bytes, bytes]) -> KeyHolder | None:
        """Return the holder of the API key of a request, or None without a valid key."""
        credential = _header_credential(headers)
        return None if credential is None else self._find_key_holder(credential)

    def issue(self, principal: Principal, lifetime: float) -> tuple[str, int]:
        """Return a token for a principal, and its expiry in seconds since 1970."""
        now = int(time.time())
        expires = now + max(1, int(lifetime))
        claims: dict[str, Any] = {
            "sub": str(principal.agent_id),
            "owner_id": str(principal.owner_id),
            "roles": sorted(principal.roles),
            "iat": now,
            "exp": expires,
        }
        if principal.key_id is not None:
            claims["key_id"] = principal.key_id
        if principal.session_id is not None:
            claims["session_id"] = principal.session_id
            claims["issued"] = principal.issued
        if principal.user_id is not None:
            claims["user_id"] = principal.user_id
        return jwt.encode({"alg": "HS256"}, claims, self._key, algorithms=["HS256"]), expires

    def _find_key_holder(self, credential: bytes) -> KeyHolder | None:
        # All digests have the same length and are compared in constant time, and no key is skipped. The time
        # of the lookup therefore reveals nothing about any key.
        digest = sha256(credential).digest()
        found = None
        for holder in self._holders:
            if hmac.compare_digest(holder.digest, digest):
                found = holder
        return found

    def _verify(self, token: bytes) -> tuple[Principal, float]:
        if len(token) > MAX_TOKEN_BYTES:
            raise Unauthenticated(f"the token is longer than {MAX_TOKEN_BYTES} bytes: {_RENEW_ADVICE}")
        if token.count(b".") != 2:
            raise Unauthenticated(
                f"this server has no such API key: {_KEY_ADVICE}"
                if self._holders
                else f"unknown token: {_RENEW_ADVICE}"
            )
        try:
            claims = jwt.decode(token, self._key, algorithms=["HS256"]).claims
        except Exception:
            # The decoder can raise many kinds of errors. All of them mean that this server did not sign the token.
            raise Unauthenticated(f"the token was not signed by this server: {_RENEW_ADVICE}") from None
        expires = _check_expiry(claims)
        return replace(_decode_principal(claims), expires=expires), expires


def _decode_principal(claims: dict[str, Any]) -> Principal:
    roles = claims.get("roles")
    if not isinstance(roles, list) or not all(
        isinstance(role, str) and role in _KNOWN_ROLES for role in roles
    ):
        raise Unauthenticated(
            f"the roles of the token must be a list of {', '.join(ALL_ROLES)}: {_RENEW_ADVICE}"
        )
    try:
        # An invalid narrowing must not be ignored. The token would then allow more than it was issued for.
        session = check_session_id(_text_or_empty(claims["session_id"])) if "session_id" in claims else None
        user = check_user_id(_text_or_empty(claims["user_id"])) if "user_id" in claims else None
        return Principal(
            parse_id(_text_or_empty(claims.get("owner_id")), what="owner_id"),
            parse_id(_text_or_empty(claims.get("sub")), what="sub"),
            frozenset(roles),
            session,
            user,
            key_id=_text_or_empty(claims.get("key_id")) or None,
            issued=_issue_time(claims),
        )
    except InvalidInput as error:
        raise Unauthenticated(f"the token has invalid claims ({error.message}): {_RENEW_ADVICE}") from None


def _check_expiry(claims: dict[str, Any]) -> float:
    now = time.time()
    expires, begins = _finite_seconds(claims.get("exp")), _finite_seconds(claims.get("nbf", 0))
    if expires is None or begins is None:
        raise Unauthenticated(f"the token has no valid expiry: {_RENEW_ADVICE}")
    if expires <= now:
        raise Unauthenticated(f"the token has expired: {_RENEW_ADVICE}")
    if begins > now:
        raise Unauthenticated("the token is not valid yet: check the clocks of client and server")
    return expires


def check_user_id(user: str) -> str:
    """Check that a user id can be part of a `user:` tag, and return it."""
    try:
        check_name(user)
    except ValueError as error:
        raise InvalidInput(f"invalid user id: {error}", where="user_id") from None
    check_not_message_tag(user)
    if len(USER + user) > MAX_TAG_LENGTH:
        raise InvalidInput(
            f"a user id must have at most {MAX_TAG_LENGTH - len(USER)} characters", where="user_id"
        )
    return user


def check_new_user_id(user: str) -> str:
    """Check a user id for new data, and return it.

    Stricter than `check_user_id`, because stores of earlier versions can contain ids with invisible characters.
    """
    if hidden := hidden_character(user):
        raise InvalidInput(
            f"a user id must not contain invisible characters: {hidden}, remove it", where="user_id"
        )
    return check_user_id(user)


def _issue_time(claims: dict[str, Any]) -> int:
    """Return the issue time of a token in microseconds. Tokens of earlier versions have whole seconds."""
    exact, seconds = claims.get("issued"), _finite_seconds(claims.get("iat"))
    if isinstance(exact, int) and not isinstance(exact, bool):
        return exact
    return 0 if seconds is None else int(seconds * 1_000_000)


def _text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""


def _finite_seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _header_credential(headers: Mapping[bytes, bytes]) -> bytes | None:
    authorization = headers.get(b"authorization")
    if authorization is not None:
        scheme, _, credential = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not credential.strip():
            raise Unauthenticated("the Authorization header must have the form: Bearer <token>")
        return credential.strip()
    return headers.get(b"x-api-key")


def _query_token(query: bytes) -> bytes | None:
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    found = {value for name, value in pairs if name in ("token", "access_token")}
    if len(found) > 1:
        raise Unauthenticated("the query contains two different tokens: send one")
    return next((value.encode("utf-8", "replace") for value in found), None)


def _make_key_holder(key: ApiKey, secret: bytes) -> KeyHolder:
    # A key without an agent_id always gets the same agent. Both ids are keyed hashes and do not reveal the key. A key
    # of which only the hash is known has other ids than the same key in plain text.
    raw = b"sha256 " + key.digest if key.key is None else key.key.get_secret_value().encode()
    agent = key.agent_id or UUID(bytes=_derive_key(secret, b"agent of key " + raw)[:16], version=4)
    key_id = _derive_key(secret, b"id of key " + raw)[:9]
    principal = Principal(
        key.owner_id, agent, frozenset(key.roles), key_id=base64.urlsafe_b64encode(key_id).decode()
    )
    return KeyHolder(principal, frozenset((agent, *key.agent_ids)), key.digest)


def _derive_key(secret: bytes, label: bytes) -> bytes:
    return hmac.new(secret, b"breadcrumbs " + label, sha256).digest()
