"""The OpenAPI 3.1 document, made from the same declared operations as the routes."""

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
    "Sessions": "Conversations: each is a view of the breadcrumbs with its `session:` tag.",
    "Breadcrumbs": "Small, versioned, tagged JSON packets: everything is one.",
    "Events": "What happens, as it happens.",
    "Contexts": "What a model gets to see of a session, and why.",
    "ADK sessions": "The Session Service of Google's Agent Development Kit, as its own servers have it.",
    "Selectors": "Which breadcrumbs an agent wants to hear about, saved by name.",
    "Dead letters": "What workers have given up on.",
    "Agents": "Who writes and reads.",
    "Tenants": "Who owns everything else.",
    "Access": "Tokens.",
    "System": "The server itself.",
}

_DESCRIPTION: Final = """\
Clients and workers never call each other: they post breadcrumbs and react to those that match a selector.

Whose breadcrumbs a request sees is decided by its token alone. A breadcrumb belongs to at most one \
session (`session:` tag and `context.session_id`) and stays in it. HEAD works where GET does. Every error is \
an RFC 9457 problem document whose `type` leads to its explanation."""


def build_document(
    operations: Sequence[Operation], *, version: str, development_mode: bool
) -> dict[str, Any]:
    """The whole document. Without API keys a request may also come without a token, and it says so."""
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
            "summary": "A tag-based breadcrumb blackboard",
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
    """The JSON Schemas of every type that an operation names."""

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
        parts.append(f"Needs the {'role' if len(roles) == 1 else 'roles'} {named}.")
    if not operation.rule.narrowed:
        parts.append("Not for tokens that are narrowed to a session or a user.")
    return " ".join(parts) or operation.summary


def _security_requirement(operation: Operation, development_mode: bool) -> list[dict[str, list[str]]]:
    if operation.rule.access == "open":
        return []
    anybody: list[dict[str, list[str]]] = [{}] if development_mode else []
    return [*anybody, {"token": []}, {"apiKey": []}]


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
    """Describe the replies by status. Several forms of one status (JSON, a stream) become one reply."""
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
