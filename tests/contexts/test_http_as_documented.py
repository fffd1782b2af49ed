"""Whatever is sent to explain, preview and the configs: no 5xx, and every answer as the OpenAPI document says."""

from __future__ import annotations

import os
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.context_builder.http.configs import ConfigRoutes
from breadcrumbs.context_builder.http.contexts import routes as CONTEXTS
from breadcrumbs.runtime.http.api.openapi import build_document

routes = ConfigRoutes(ConfigsInForce(None, None), None)  # type: ignore[arg-type]  # only what they declare is looked at
operations = (*CONTEXTS, *routes.operations)
api = schemathesis.openapi.from_dict(build_document(operations, version="0", development_mode=True))

EXAMPLES = 50 if os.environ.get("CI") == "true" else 12


@api.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_the_document_says(case: schemathesis.Case[Any], served: str) -> None:
    """What the document allows may be refused all the same: that a config triggers itself is beyond JSON Schema."""
    case.call_and_validate(base_url=served, excluded_checks=[positive_data_acceptance])
