"""Random requests to explain, preview and the configs: no 5xx, and replies as documented."""

from __future__ import annotations

import os
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings

from breadcrumbs.context_builder.configs_in_force import ConfigsInForce
from breadcrumbs.context_builder.http.configs import ConfigRoutes
from breadcrumbs.context_builder.http.contexts import routes as CONTEXTS
from breadcrumbs.runtime.http.api.openapi import build_document
from tests.support.openapi import call_and_check

routes = ConfigRoutes(ConfigsInForce(None, None), None)  # type: ignore[arg-type]  # only the declarations are used
operations = (*CONTEXTS, *routes.operations)
api = schemathesis.openapi.from_dict(build_document(operations, version="0", development_mode=True))

EXAMPLES = 50 if os.environ.get("CI") == "true" else 12


@api.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_reply_matches_the_document(case: schemathesis.Case[Any], served: str) -> None:
    """Allowed input can still be refused: JSON Schema cannot express that a config must not trigger itself."""
    call_and_check(case, served)
