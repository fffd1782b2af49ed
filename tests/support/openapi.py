"""Compares answers of a server with its OpenAPI document."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import schemathesis
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

_TOO_LARGE: Final = (413, 414, 431)


def call_and_check(case: schemathesis.Case[Any], base_url: str) -> None:
    """Send a generated request and check the answer. A request that the document allows may be refused."""
    answer = case.call(base_url=base_url)
    if unknown := _unknown_query_names(case, str(answer.request.url)):
        assert 400 <= answer.status_code < 500, f"accepted unknown query parameters: {sorted(unknown)}"
    excluded: list[Any] = [positive_data_acceptance]
    if answer.status_code in _TOO_LARGE:
        excluded.append(negative_data_rejection)  # it was rejected; schemathesis expects other statuses
    case.validate_response(answer, excluded_checks=excluded)


def _unknown_query_names(case: schemathesis.Case[Any], url: str) -> set[str]:
    """Return the names in the URL that the document does not declare.

    schemathesis does not expect that these are refused. A generated parameter that is not in the URL, such as an empty
    list, was not sent.
    """
    sent = {name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)}
    return sent - {parameter.name for parameter in case.operation.query}
