"""Builds the OpenAPI 3.1 document from the declared operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final

from pydantic import TypeAdapter

from breadcrumbs.runtime.http.api.operations import Body, Operation, Parameter, SuccessReply
from breadcrumbs.runtime.http.api.problems import RATE_LIMITED, VERSION_MISMATCH, ProblemType
from breadcrumbs.runtime.http.api.schemas import Problem

_REF: Final = "#/components/schemas/{model}"

_GROUPS: Final = {
    "Sessions": "Conversations. A session consists of all breadcrumbs with its `session:` tag.",
    "Breadcrumbs": "Small, versioned JSON documents with tags. All data is stored as breadcrumbs.",
    "Events": "A live stream of all changes.",
    "Contexts": "The context that a model receives for a message, and the reason for each part of it.",
    "Feedback": "Ratings of answers. Models never see them.",
    "Usage": "Tokens and costs of model calls, and budgets.",
    "ADK sessions": "The session service of Google's Agent Development Kit, with the routes of its own server.",
    "Selectors": "Saved filters for the events of an agent.",
    "Dead letters": "Events that failed every attempt.",
    "Agents": "Programs that read and write breadcrumbs.",
    "Tenants": "Owners of breadcrumbs, sessions and agents.",
    "Access": "Issuing tokens.",
    "System": "Health, metrics, maintenance and documentation of the server.",
}

_DESCRIPTION: Final = """\
Clients and workers never call each other. They post breadcrumbs, and react to breadcrumbs that match a selector.

The token of a request alone decides which breadcrumbs it can read. A breadcrumb belongs to at most one session \
(`session:` tag and `context.session_id`) and stays in it. Every path with GET also supports HEAD. Every error is an \
RFC 9457 problem document whose `type` links to its explanation."""


def build_document(
    operations: Sequence[Operation], *, version: str, development_mode: bool
) -> dict[str, Any]:
    """Return the OpenAPI document. In development mode it declares tokens as optional."""
    schemas = _Schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation_document(
            operation, schemas, development_mode
        )
    used = {operation.group for operation in operations}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Breadcrumbs",
            "version": version,
            "summary": "A blackboard of tagged JSON documents",
            "description": _DESCRIPTION,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in _GROUPS.items() if name in used],
        "paths": paths,
        "components": {
            "schemas": schemas.definitions,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


class _Schemas:
    """JSON Schemas of all types in the declarations of operations."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        wanted: dict[str, TypeAdapter[Any]] = {repr(Problem): TypeAdapter(Problem)}
        for operation in operations:
            for type in (
                *(reply.schema for reply in operation.successes),
                operation.body and operation.body.model,
            ):
                if type is not None:
                    wanted[repr(type)] = TypeAdapter(type)
        found, shared = TypeAdapter.json_schemas(
            [(name, "validation", adapter) for name, adapter in wanted.items()], ref_template=_REF
        )
        self.definitions: dict[str, Any] = shared.get("$defs", {})
        self._by_name = {name: schema for (name, _), schema in found.items()}

    def of(self, type: Any) -> Any:
        return self._by_name[repr(type)]


def _operation_document(operation: Operation, schemas: _Schemas, development_mode: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.group],
        "summary": operation.summary,
        "description": _operation_description(operation),
        "security": _security_requirement(operation, development_mode),
        "responses": {
            **_success_replies(operation.successes, schemas),
            **_problem_replies(operation.problems, schemas),
        },
    }
    if operation.parameters:
        described["parameters"] = [_parameter_document(parameter) for parameter in operation.parameters]
    if operation.body is not None:
        described["requestBody"] = _body_document(operation.body, schemas)
    return described


def _operation_description(operation: Operation) -> str:
    parts = [operation.description] if operation.description else []
    if roles := operation.rule.roles:
        named = " and ".join(f"`{role}`" for role in roles)
        parts.append(f"Requires the {'role' if len(roles) == 1 else 'roles'} {named}.")
    if not operation.rule.narrowed:
        parts.append("Not allowed for tokens that are narrowed to a session or a user.")
    return " ".join(parts) or operation.summary


def _security_requirement(operation: Operation, development_mode: bool) -> list[dict[str, list[str]]]:
    if operation.rule.access == "open":
        return []
    no_credentials: list[dict[str, list[str]]] = [{}] if development_mode else []
    return [*no_credentials, {"token": []}, {"apiKey": []}]


def _parameter_document(parameter: Parameter) -> dict[str, Any]:
    schema = dict(parameter.schema)
    described: dict[str, Any] = {
        "name": parameter.name,
        "in": parameter.location,
        "required": parameter.location == "path",
        "description": parameter.description,
        "schema": {"type": "array", "items": schema} if parameter.repeatable else schema,
    }
    if parameter.repeatable:
        described |= {"style": "form", "explode": True}
    if parameter.example is not None:
        described["example"] = [parameter.example] if parameter.repeatable else parameter.example
    return described


def _body_document(body: Body, schemas: _Schemas) -> dict[str, Any]:
    content = {"schema": schemas.of(body.model), "example": dict(body.example)}
    return {"required": body.required, "content": dict.fromkeys(body.media_types, content)}


def _success_replies(replies: Sequence[SuccessReply], schemas: _Schemas) -> dict[str, Any]:
    """Return the replies by status. Several media types of one status are merged into one reply."""
    by_status: dict[str, Any] = {}
    for reply in replies:
        described = _success_reply(reply, schemas)
        first = by_status.setdefault(str(reply.status), described)
        if first is not described:
            first["content"] |= described["content"]
            first["description"] += " " + described["description"]
    return by_status


def _success_reply(reply: SuccessReply, schemas: _Schemas) -> dict[str, Any]:
    described: dict[str, Any] = {"description": reply.description}
    if reply.schema is not None:
        described["content"] = {reply.media_type: {"schema": schemas.of(reply.schema)}}
    elif reply.media_type != "application/json":
        described["content"] = {reply.media_type: {"schema": {"type": "string"}}}
    if reply.headers:
        described["headers"] = {
            name: {
                "description": text,
                "required": name not in reply.optional_headers,
                "schema": {"type": "string"},
            }
            for name, text in reply.headers.items()
        }
    return described


def _problem_replies(problems: list[ProblemType], schemas: _Schemas) -> dict[str, Any]:
    by_status: dict[str, Any] = {}
    for status, group in groupby(problems, key=lambda kind: kind.status):
        kinds = list(group)
        described: dict[str, Any] = {
            "description": " · ".join(f"{kind.title} (`{kind.name}`)" for kind in kinds),
            "content": {"application/problem+json": {"schema": schemas.of(Problem)}},
        }
        if headers := _problem_headers(status):
            described["headers"] = headers
        by_status[str(status)] = described
    return by_status


def _problem_headers(status: int) -> dict[str, Any]:
    known = {
        401: ("WWW-Authenticate", "`Bearer`"),
        VERSION_MISMATCH.status: ("ETag", "The newest version."),
        RATE_LIMITED.status: ("Retry-After", "Seconds to wait."),
        503: ("Retry-After", "Seconds to wait."),
    }
    if status not in known:
        return {}
    name, text = known[status]
    return {name: {"description": text, "required": True, "schema": {"type": "string"}}}
