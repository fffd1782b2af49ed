"""Worker on a cluster: a process that answers messages from a store on Redis Cluster.

Shows: `@agent`, `run_agents` and the address of a cluster. Start this program several times to share the work. A killed
worker loses no message: another worker takes over its lanes and answers.

Run an API server and a context builder on the cluster, then any number of workers:

    ./crumb up --redis redis+cluster://127.0.0.1:7000
    .venv/bin/python examples/cluster_worker.py redis+cluster://127.0.0.1:7000

Then post a message, for example with `./crumb post "one two three" --session demo`. The default assistant of `crumb up`
answers too, so each message gets one answer of each agent. Ctrl-C or SIGTERM ends a worker after
the turns that it has begun.
"""

import os
import sys

from breadcrumbs import Call, agent, run_agents

MESSAGE = {"schema_name": "user.message.v1", "any_tags": ["user:message"], "role": "trigger"}
HISTORY = {"schema_name": "user.message.v1", "role": "context", "fetch": {"method": "recent", "limit": 20}}


@agent("counter", triggers=[MESSAGE, HISTORY])
async def counter(call: Call) -> str:
    """Count the words that the user wrote in this session."""
    words = sum(len(message.content.split()) for message in call.messages if message.role == "user")
    print(f"worker {os.getpid()} counted {words} words", flush=True)
    return f"{words} words so far"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/cluster_worker.py redis+cluster://HOST:PORT")
    run_agents([counter], redis=sys.argv[1])
