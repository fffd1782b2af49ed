"""The project that tests belong to: the agents, tools and context configs that its `crumb.toml` names.

Without a `crumb.toml`, these are the agents, tools and configs of the package.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from breadcrumbs.agents.agents_in_force import ActiveAgent, load_definitions
from breadcrumbs.agents.models.base import Model
from breadcrumbs.agents.models.registry import resolve_model
from breadcrumbs.agents.tools import Tool, load_tools, shipped_tools
from breadcrumbs.composition.own_agents import OwnAgents, load_agents
from breadcrumbs.context_builder.config import ContextConfig
from breadcrumbs.context_builder.config_checks import parse_configs
from breadcrumbs.runtime.errors import StartupError
from breadcrumbs.runtime.settings.settings import Settings, load_settings

SETTINGS_FILE = "crumb.toml"


def find_project(folder: Path, top: Path) -> Project:
    """Return the project of a folder: the nearest `crumb.toml` there or above it, up to `top`."""
    for candidate in (folder, *folder.parents):
        if (candidate / SETTINGS_FILE).is_file():
            return Project(candidate, load_settings(config=candidate / SETTINGS_FILE))
        if candidate == top:
            break
    return Project(folder, None)


@dataclass
class Project:
    """The files of a project."""

    folder: Path
    settings: Settings | None
    """None: the folder has no settings."""

    @cached_property
    def agents(self) -> Mapping[str, ActiveAgent]:
        """The agents of the folder `agents` and of the modules in `load`, by agent_id."""
        folder = None if self.settings is None else self._path(self.settings.agents)
        found = [*load_definitions(folder), *self._own.agents]
        return {agent.definition.agent_id: agent for agent in found}

    @cached_property
    def tools(self) -> list[Tool]:
        """The tools of the package and of the project."""
        if self.settings is not None and self.settings.tools:
            self._allow_imports()
        own = load_tools(self.settings.tools) if self.settings is not None else []
        return [*shipped_tools(), *own, *self._own.tools]

    @cached_property
    def configs(self) -> Mapping[str, ContextConfig]:
        """The context configs of the project's file, by consumer. Empty without a file."""
        path = None if self.settings is None else self._path(self.settings.context_config)
        if path is None:
            return {}
        try:
            configs = parse_configs(path.read_bytes(), name=str(path))
        except OSError as error:
            raise StartupError(f"cannot read the context config {path}: {error.strerror}") from None
        return {config.consumer_id: config for config in configs}

    def agent(self, agent_id: str) -> ActiveAgent:
        """Return an agent of the project. Raise `StartupError` with the names of all agents if there is none."""
        if (found := self.agents.get(agent_id)) is None:
            raise StartupError(
                f"{self.folder} has no agent {agent_id!r}. Its agents: {', '.join(sorted(self.agents))}"
            )
        return found

    def model(self, name: str) -> Model:
        """Return the model with this name, as the settings of the project define it."""
        return resolve_model(name, {} if self.settings is None else self.settings.models)

    @cached_property
    def _own(self) -> OwnAgents:
        if self.settings is None or not self.settings.load:
            return OwnAgents()
        self._allow_imports()
        return load_agents(self.settings.load)

    def _path(self, path: Path | None) -> Path | None:
        return None if path is None else self.folder / path

    def _allow_imports(self) -> None:
        if (folder := str(self.folder)) not in sys.path:
            sys.path.insert(0, folder)

    def config_document(self, consumer: str) -> dict[str, Any] | None:
        """Return the JSON of the config for a consumer, or None if the project has none."""
        config = self.configs.get(consumer)
        return None if config is None else config.archived_document()
