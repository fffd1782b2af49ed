"""The OpenAPI document tells the truth: every route is in it, and every answer is as it says."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings


DOCUMENT = build_document(OPERATIONS, version="0", development_mode=True)

# The stream does not end; it has tests of its own.
api = schemathesis.openapi.from_dict(DOCUMENT).exclude(path="/events/stream")


@api.parametrize()
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_the_document_says(case: schemathesis.Case, served: str) -> None:
    case.call_and_validate(base_url=served)
