"""Known providers of models, and the forms in which a user writes a model.

This is the only list of the forms. The help of `crumb up`, its banner, `crumb model list` and the errors use it. The
module imports nothing heavy, because `crumb --help` loads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OFFLINE: Final = "offline"
"""Name of the built-in model, which needs no key and no network."""

URL_FORM: Final = "http://host/v1#model"
"""Form of a model on any server with the chat completions API."""


@dataclass(frozen=True, slots=True)
class Preset:
    """URL and options of a well-known provider."""

    url: str
    key_env: str
    """Environment variable with the key."""
    needs_key: bool
    prefers_max_completion_tokens: bool = False
    accepts_cache_key: bool = False
    """Whether requests can have a `prompt_cache_key`. Groq, Cerebras and others refuse requests with this field."""
    example: str = ""
    """Name of one of its models."""
    description: str = ""


PRESETS: Final[dict[str, Preset]] = {
    "ollama": Preset(
        "http://127.0.0.1:11434/v1",
        "OLLAMA_API_KEY",
        False,
        example="llama3.2",
        description="Ollama on this machine",
    ),
    # OpenAI's reasoning models refuse `max_tokens`. All of its models accept the newer name.
    "openai": Preset(
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
        True,
        prefers_max_completion_tokens=True,
        accepts_cache_key=True,
        example="gpt-4.1-mini",
        description="OpenAI",
    ),
    "openrouter": Preset(
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        True,
        example="anthropic/claude-sonnet-4.5",
        description="OpenRouter",
    ),
    "anthropic": Preset(
        "https://api.anthropic.com/v1",
        "ANTHROPIC_API_KEY",
        True,
        example="claude-sonnet-4-5",
        description="Anthropic",
    ),
    "vllm": Preset(
        "http://127.0.0.1:8000/v1",
        "VLLM_API_KEY",
        False,
        example="Qwen/Qwen3-8B",
        description="vLLM on this machine",
    ),
}


@dataclass(frozen=True, slots=True)
class ModelForm:
    """One way to write a model: an example, the key that it needs, and its meaning."""

    example: str
    key_env: str
    """Environment variable of the key. Empty if no key is needed."""
    description: str


def model_forms() -> list[ModelForm]:
    """Return all forms, the offline model first and the general form last."""
    return [
        ModelForm(OFFLINE, "", "built in, repeats your messages"),
        *(
            ModelForm(
                f"{name}:{preset.example}", preset.key_env if preset.needs_key else "", preset.description
            )
            for name, preset in PRESETS.items()
        ),
        ModelForm(
            "http://127.0.0.1:4000/v1#my-model",
            "",
            "any OpenAI-compatible server",
        ),
    ]


def forms_help() -> str:
    """Return the forms as lines for a help text."""
    width = max(len(form.example) for form in model_forms())
    return "\n".join(
        f"{form.example:<{width}}  {form.description}{f', {form.key_env}' if form.key_env else ''}"
        for form in model_forms()
    )
