"""The documents of the package, at `/docs/<name>`.

They are Markdown, served as plain text: a browser shows them without a renderer, and nothing in them can run. Names are
flat, because a path parameter is one segment: `docs/how-to/memory.md` is `/docs/how-to.memory.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from breadcrumbs.runtime.errors import NotFound
from breadcrumbs.runtime.http.api.call import HttpCall
from breadcrumbs.runtime.http.api.operations import Operation, Parameter, SuccessReply
from breadcrumbs.runtime.http.api.problems import NOT_FOUND
from breadcrumbs.runtime.http.api.replies import Reply

_FOLDERS: Final = ("", "how-to", "reference")
_MEDIA_TYPE: Final = "text/plain; charset=utf-8"
_HEADERS: Final = [
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-cache"),
]


class Guides:
    """The documents, read once."""

    def __init__(self, texts: Mapping[str, bytes]) -> None:
        self._texts = texts

    @classmethod
    def of_this_installation(cls) -> Guides:
        """Read the documents from the installed package."""
        return cls(dict(_documents(resources.files("breadcrumbs.docs"))))

    async def read(self, call: HttpCall) -> Reply:
        """Return one document."""
        name = call.scope["path_params"]["name"]
        text = self._texts.get(name)
        if text is None:
            raise NotFound("document not found: /docs lists the documents")
        return Reply(200, text, _MEDIA_TYPE.encode(), _HEADERS)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operation that serves the documents."""
        names = {"type": "string", "enum": list(self._texts)}
        return (
            Operation(
                id="readGuide",
                method="GET",
                path="/docs/{name}",
                group="System",
                summary="Read a guide, as Markdown",
                handle=self.read,
                uses_store="no",
                parameters=(Parameter("name", "path", "Name of the document.", names),),
                successes=(SuccessReply(200, "The document.", media_type="text/plain"),),
                may_fail=(NOT_FOUND,),
            ),
        )


def _documents(root: Traversable) -> Iterator[tuple[str, bytes]]:
    """Yield the flat name and the text of each document, sorted within its folder."""
    for folder in _FOLDERS:
        files = root.joinpath(folder).iterdir() if folder else root.iterdir()
        for file in sorted(files, key=lambda file: file.name):
            if file.name.endswith(".md"):
                yield f"{folder}.{file.name}" if folder else file.name, file.read_bytes()
