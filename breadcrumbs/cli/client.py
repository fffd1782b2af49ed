"""The client commands' way to a running server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import httpx

from breadcrumbs.cli.output import CommandError, command
from breadcrumbs.client.errors import Unauthenticated
from breadcrumbs.client.http import check_address
from breadcrumbs.client.sync import Client

_TRIES = 4
_WHO = "  set CRUMB_API_KEY or CRUMB_TOKEN, or pass --token"


@contextmanager
def open_client(
    url: str, *, token: str | None = None, api_key: str | None = None, retries: int = 0
) -> Iterator[Client]:
    """The public client, for commands that follow the event stream. What it is refused, it says as `Api` does."""
    try:
        client = Client(url, token=token, api_key=api_key, retries=retries)
    except ValueError as error:
        raise CommandError(str(error)) from None
    with client:
        try:
            yield client
        except Unauthenticated as error:
            raise CommandError(f"{error}\n{_WHO}") from None


class Api:
    """A server, and who we are there. What it refuses is raised in its own words."""

    def __init__(self, url: str, *, token: str | None = None, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        try:
            host = check_address(self.url)
        except ValueError as error:
            raise CommandError(str(error)) from None
        headers = {"authorization": f"Bearer {token}"} if token else {"x-api-key": api_key} if api_key else {}
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers=headers,
                timeout=httpx.Timeout(30.0, connect=5.0),
                # A proxy that is set for the internet cannot reach this machine's own address.
                trust_env=host not in ("127.0.0.1", "localhost", "::1"),
            )
        except UnicodeEncodeError:
            raise CommandError("the token or the API key holds characters that no token has") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise self.unreachable(error) from error
        self._check(response)
        return response

    def get(self, path: str, params: list[tuple[str, str]] | None = None) -> httpx.Response:
        return self.request("GET", path, params=params)

    def create(self, document: dict[str, Any], idempotency_key: str) -> httpx.Response:
        """Post a breadcrumb. The key makes it safe to try again where the answer was lost."""
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            try:
                response = self._http.post(
                    "/breadcrumbs", json=document, headers={"idempotency-key": idempotency_key}
                )
            except httpx.ConnectError as error:
                raise self.unreachable(error) from error
            except httpx.HTTPError as error:
                if last:
                    raise self.unreachable(error) from error
            else:
                if response.status_code != 503 or last:
                    self._check(response)
                    return response
            time.sleep(0.25 * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _check(self, response: httpx.Response) -> None:
        if response.is_success and "json" in response.headers.get("content-type", ""):
            return
        try:
            problem = response.json()
        except ValueError:
            problem = None
        if not isinstance(problem, dict) or "detail" not in problem:
            raise CommandError(
                f"{self.url} answered {response.status_code} to {response.request.method} "
                f"{response.request.url.path}: is this a Breadcrumbs server?"
            )
        lines = [str(problem["detail"])]
        lines += [
            f"  {complaint['where']}: {complaint['message']}"
            for complaint in problem.get("errors", ())
            if complaint["message"] != problem["detail"]
        ]
        if response.status_code == 401:
            lines.append(_WHO)
        raise CommandError("\n".join(lines))

    def unreachable(self, error: httpx.HTTPError) -> CommandError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return CommandError(
                f"nothing answers at {self.url}. Is it running? Start it with: {command()} up"
            )
        if isinstance(error, httpx.TimeoutException):
            return CommandError(f"{self.url} did not answer in time. crumb doctor may know why")
        return CommandError(f"the connection to {self.url} failed: {error or type(error).__name__}")
