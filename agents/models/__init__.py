"""Models.

`base` is the boundary. `offline` needs no key and no network and is the default. `openai_compatible` speaks chat
completions over HTTP, to an `endpoint`. `scripted` is for tests. `registry` makes a model from its name.

`__all__` lists the modules that other packages may import.
"""

__all__ = ["base", "chat_format", "endpoint", "endpoint_registry", "registry"]
