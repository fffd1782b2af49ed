"""Models: one interface, three implementations.

`base` is the interface. `offline` is the default and needs no key and no network. `openai_compatible` uses the chat
completions API of an `endpoint`. `scripted` is for tests, `given` accepts
models as objects. `registry` makes a model from its name. `providers` lists the
known providers. `check` tries a model, and `listing` only asks its server for the list of models.

`__all__` lists the modules that other packages may import.
"""

__all__ = [
    "base",
    "chat_format",
    "check",
    "endpoint",
    "endpoint_registry",
    "fallback",
    "given",
    "listing",
    "names",
    "offered",
    "offline",
    "openai_compatible",
    "output_schema",
    "prices",
    "providers",
    "registry",
    "scripted",
    "streaming",
    "table",
    "windows",
]
