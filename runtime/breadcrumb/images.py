"""Images that a user attaches to a message, in the context key `attached_images` of the message.

Each one is an object with `media_type` and `data`, which is base64. Contexts contain only a description with a digest:
the data stays in the message, and the agent reads it from there.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from breadcrumbs.runtime.errors import InvalidInput

ATTACHED_IMAGES: Final = "attached_images"
"""Context key of a message with its images."""
MEDIA_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/gif")
MAX_IMAGES: Final = 8
"""Maximum number of images of a message, and of a prompt."""

_INVALID: Final = {"problem": "the image cannot be read"}


def describe_images(value: Any) -> list[dict[str, Any]]:
    """Return the images without their data. An invalid one is described as such, because a client wrote it."""
    if not isinstance(value, list):
        return [_INVALID]
    return [_describe(one) for one in value[:MAX_IMAGES]]


def _describe(image: Any) -> dict[str, Any]:
    problem = find_problem(image)
    if problem:
        return _INVALID
    size, digest = _measure(image["data"])
    return {"media_type": image["media_type"], "bytes": size, "sha256": digest}


def find_problem(image: Any) -> str:
    """Return why an image cannot be used, or an empty text."""
    if not isinstance(image, dict) or not isinstance(image.get("data"), str):
        return "an image needs media_type and data"
    if image.get("media_type") not in MEDIA_TYPES:
        return f"media_type must be one of {', '.join(MEDIA_TYPES)}"
    try:
        return "" if _measure(image["data"])[0] else "data is empty"
    except ValueError:
        return "data is not base64"


def check_images(value: Any) -> None:
    """Raise `InvalidInput` with the position of the first image that cannot be used."""
    where = f"context.{ATTACHED_IMAGES}"
    if not isinstance(value, list):
        raise InvalidInput("attached_images must be a list", where=where)
    if len(value) > MAX_IMAGES:
        raise InvalidInput(
            f"a message has at most {MAX_IMAGES} images, and this one has {len(value)}", where=where
        )
    for number, image in enumerate(value):
        if problem := find_problem(image):
            raise InvalidInput(problem, where=f"{where}[{number}]")


def image_with_digest(value: Any, digest: str) -> str | None:
    """Return the base64 data of the image with a digest, or None if there is none."""
    for image in value if isinstance(value, list) else ():
        if not find_problem(image) and _measure(image["data"])[1] == digest:
            return str(image["data"])
    return None


@lru_cache(maxsize=16)
def _measure(data: str) -> tuple[int, str]:
    """Return the size and the SHA-256 of an image. Raise `ValueError` if it is not base64."""
    try:
        raw = b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("not base64") from error
    return len(raw), sha256(raw).hexdigest()
