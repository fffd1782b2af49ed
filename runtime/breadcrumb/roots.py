"""The root of a breadcrumb: the message that everything in a chain of agents follows from.

The runtime writes the id of the root into each context, answer, error and tool call. A client can write the same key
into its own breadcrumbs. It is ignored there, so a client cannot attach its breadcrumb to another chain.
"""

from __future__ import annotations

from breadcrumbs.runtime.breadcrumb.breadcrumb import Breadcrumb
from breadcrumbs.runtime.schema_names import AGENT_CONTEXT, ROOT


def root_of(crumb: Breadcrumb) -> str:
    """Return the id of the root of a breadcrumb. A breadcrumb of a client is its own root."""
    if crumb.created_by is not None:
        return crumb.id_text
    context = crumb.context
    root = context.get(ROOT)
    if root is None and crumb.schema_name == AGENT_CONTEXT:
        root = context.get("trigger_id")  # earlier versions wrote contexts without a root
    return root if isinstance(root, str) else crumb.id_text
