"""Run workers with a slow model in their own process: `python -m tests.http.thinking URL NAMESPACE`.

The process prints a line when the model begins and when it is cancelled.
"""

from __future__ import annotations

import sys

import anyio

from breadcrumbs.agents.models.base import ModelRequest
from breadcrumbs.agents.models.scripted import FunctionModel
from breadcrumbs.runtime.settings.settings import DEVELOPER
from tests.support.conversations import opened, working


async def think(request: ModelRequest) -> str:
    print("begins", flush=True)
    try:
        await anyio.sleep(120)
    finally:
        print("stopped", flush=True)
    return "too late"


async def main(url: str, namespace: str) -> None:
    async with (
        opened(url, lanes=None, namespace=namespace) as store,
        working(store, FunctionModel(think), owner=DEVELOPER),
    ):
        print("ready", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
