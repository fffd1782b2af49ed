"""The client for ordinary code: each call waits for its result."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from typing import Any, Literal, Self, TypeVar, overload
from uuid import uuid4

import httpx

from breadcrumbs.client import turns
from breadcrumbs.client.core import DEFAULT_URL, Core
from breadcrumbs.client.effects import (
    Channel,
    Effect,
    Item,
    Lost,
    Open,
    Operation,
    Pause,
    Read,
    Reply,
    Send,
    Sequence,
    Shut,
    as_item,
)
from breadcrumbs.client.http import arguments_of, client_options, lost, reply_of
from breadcrumbs.client.turns import Conversation, OnConnection
from breadcrumbs.client.values import Answer, Breadcrumb, ChatMessage, Delta, Event, Token, Version, Written

T = TypeVar("T")
