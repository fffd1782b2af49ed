"""The object behind the fixture `crumbs`: runs agents on a temporary server and talks to them as one owner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, Unpack
from uuid import UUID, uuid4

from breadcrumbs.agents.agents_in_force import ActiveAgent, parse_definition
from breadcrumbs.agents.models.base import Model, ModelReply
from breadcrumbs.agents.models.given import as_model
from breadcrumbs.agents.models.offline import OfflineModel
from breadcrumbs.agents.models.scripted import ScriptedModel
from breadcrumbs.agents.tools import Tool, Toolbox
from breadcrumbs.client.errors import NoAnswer
from breadcrumbs.client.options import Saying
from breadcrumbs.client.sync import Client, Session
from breadcrumbs.client.values import Written
from breadcrumbs.composition.own_agents import OwnAgent, collect_agents
from breadcrumbs.composition.temporary_servers import TemporaryServer
from breadcrumbs.context_builder.configs_in_force import TEXT_KEY
from breadcrumbs.runtime.errors import InvalidInput, StartupError
from breadcrumbs.runtime.schema_names import CONTEXT_CONFIG
from breadcrumbs.testing.answers import CheckedAnswer
from breadcrumbs.testing.project import Project, find_project

AgentToTest: TypeAlias = str | Path | OwnAgent | ActiveAgent
"""Name of an agent of the project, path of a definition file, a definition, or a function with `@agent`."""

Reply: TypeAlias = str | ModelReply | Exception

_TIMEOUT_SECONDS = 20.0
"""A scripted answer takes milliseconds. A test that waits longer has no agent for its message."""


class Conversation:
    """One session of a test."""

    def __init__(self, crumbs: Crumbs, session: Session) -> None:
        self._crumbs = crumbs
        self.session = session

    @property
    def id(self) -> str:
        return self.session.id

    def say(self, text: str, **options: Unpack[Saying]) -> CheckedAnswer:
        """Post a message and return its answer. Raises `AgentFailed` with the reason if the agent failed."""
        timeout = options.setdefault("timeout", _TIMEOUT_SECONDS)
        try:
            return CheckedAnswer(self._crumbs, self.session.say(text, **options))
        except NoAnswer as error:
            running = ", ".join(self._crumbs.running) or "none: call crumbs.run(…) first"
            raise AssertionError(
                f"no answer to {text!r} within {timeout:g} s. Running agents: {running}. Check that the triggers of "
                "an agent match the message, and that the replies are not used up"
            ) from error

    def post(
        self,
        schema_name: str,
        context: Mapping[str, Any],
        *,
        tags: Iterable[str] = (),
        title: str = "",
        **fields: Any,
    ) -> Written:
        """Post a breadcrumb into the session, such as an attached page."""
        return self._crumbs.client.create(
            schema_name, context, title=title, tags=tags, session=self.id, **fields
        )


class Crumbs:
    """Runs agents for one test. The owner is new, so no data of other tests is visible."""

    def __init__(
        self, server: TemporaryServer, client: Client, owner: UUID, project: Project, folder: Path
    ) -> None:
        self.server = server
        self.client = client
        """A client of the temporary server, with a token of the owner."""
        self.owner = owner
        self.project = project
        self.folder = folder
        """Folder of the test. Relative paths of recordings and definitions begin here."""
        self.running: list[str] = []
        """Ids of the agents that run."""
        self.updates_recordings = False
        """Write the actual prompts and answers into recordings instead of comparing them."""
        self._stack = ExitStack()
        self._session = Conversation(self, client.session("test"))

    # Agents

    def run(
        self,
        *agents: AgentToTest,
        replies: Sequence[Reply] | None = None,
        model: Any = None,
        tools: Iterable[Tool] | Toolbox = (),
        config: Mapping[str, Any] | None = None,
    ) -> Model | None:
        """Run agents until the end of the test. Without agents, run all agents of the project.

        `replies` are the replies of the model, one per call. `model` is a function of a `ModelRequest`, a model
        object, or a name such as `ollama:llama3.2`. Without both, agents use the offline model: a test never calls a
        provider by accident. `tools` are added to those of the project; a `Toolbox` replaces them. `config` is a
        context config. Without it, the one of the project or of the package is used. Returns the model.
        """
        if replies is not None and model is not None:
            raise StartupError("use either replies or model, not both")
        given = ScriptedModel(replies) if replies is not None else self._model(model)
        chosen = [self._find(one) for one in agents] or list(self.project.agents.values())
        ready = [_with_model(agent, given) for agent in chosen]
        toolbox = tools if isinstance(tools, Toolbox) else self.toolbox(tools)
        for agent in ready:
            self._provide_config(agent, config)
        self._stack.enter_context(self.server.running_agents(ready, toolbox))
        self.running += [agent.definition.agent_id for agent in ready]
        return given

    def toolbox(self, tools: Iterable[Tool] = ()) -> Toolbox:
        """Return the tools of the package, of the project and of the test. Those of the test replace the others."""
        own = {tool.name: tool for tool in tools}
        others = [tool for tool in self.project.tools if tool.name not in own]
        try:
            return Toolbox([*others, *own.values()])
        except InvalidInput as error:
            raise StartupError(f"the tools conflict: {error}") from None

    def _find(self, agent: AgentToTest) -> ActiveAgent:
        if isinstance(agent, ActiveAgent):
            return agent
        if isinstance(agent, str) and not agent.endswith(".json"):
            return self.project.agent(agent)
        if isinstance(agent, str | Path):
            path = self._path(agent)
            return ActiveAgent(parse_definition(str(path), path.read_bytes()), trusted=True)
        return collect_agents([agent]).agents[0]

    def _path(self, named: str | Path) -> Path:
        here = self.folder / named
        return here if here.exists() else self.project.folder / named

    def _model(self, model: Any) -> Model | None:
        if model is None:
            return None
        if isinstance(model, str):
            return self.project.model(model)
        if (made := as_model(model)) is None:
            raise StartupError(
                f"{model!r} is not a model: use a function of a ModelRequest, an object with `name`, `complete` and "
                "`close`, or a name such as offline"
            )
        return made

    def _provide_config(self, agent: ActiveAgent, given: Mapping[str, Any] | None) -> None:
        """Post the context configs that the triggers of an agent need."""
        if given is not None:
            self.post_config(given)
            return
        for selector in agent.definition.triggers:
            if (consumer := selector.consumer_id) is not None:
                self.post_config(self.project.config_document(consumer) or _built_in_config(self, consumer))

    def post_config(self, config: Mapping[str, Any]) -> None:
        """Post a context config for the owner of the test."""
        document = {name: value for name, value in config.items() if name not in ("$schema", TEXT_KEY)}
        self.client.create(CONTEXT_CONFIG, document, title=f"Config of {document.get('consumer_id')}")

    # Conversations

    def session(self, name: str | None = None) -> Conversation:
        """Return another session, by default a new one."""
        return Conversation(self, self.client.session(name))

    def say(self, text: str, **options: Unpack[Saying]) -> CheckedAnswer:
        """Post a message into the session of the test and return its answer."""
        return self._session.say(text, **options)

    def post(self, schema_name: str, context: Mapping[str, Any], **fields: Any) -> Written:
        """Post a breadcrumb into the session of the test. `tags`, `title` and other fields are optional."""
        return self._session.post(schema_name, context, **fields)

    def share(
        self, schema_name: str, context: Mapping[str, Any], *, tags: Iterable[str] = (), **fields: Any
    ) -> Written:
        """Post a breadcrumb without a session. Sources with the scope `all` can find it."""
        return self.client.create(schema_name, context, tags=tags, **fields)

    # Recordings

    def replay(self, recording: str | Path) -> list[CheckedAnswer]:
        """Repeat a recorded conversation with the agents of the project, and compare prompts and answers.

        The model and the tools return the recorded replies. Returns the answers.
        """
        from breadcrumbs.testing.recordings import replay_file

        __tracebackhide__ = True
        return replay_file(self, self.folder / recording, update=self.updates_recordings)

    def stop(self) -> None:
        """Stop the running agents. Others can run afterwards."""
        self._stack.close()
        self.running.clear()


@contextmanager
def open_crumbs(server: TemporaryServer, folder: Path, top: Path) -> Iterator[Crumbs]:
    """Provide the fixture for a test in a folder. Its project is searched there and above, up to `top`."""
    owner = uuid4()
    with Client(server.url, token=_token(server, owner)) as client:
        crumbs = Crumbs(server, client, owner, find_project(folder, top), folder)
        try:
            yield crumbs
        finally:
            crumbs.stop()


def _token(server: TemporaryServer, owner: UUID) -> str:
    with Client(server.url, token="") as developer:
        return developer.token(owner_id=str(owner)).token


def _with_model(agent: ActiveAgent, given: Model | None) -> ActiveAgent:
    if given is None and agent.given_model is not None:
        return agent
    return replace(agent, given_model=given or OfflineModel())


def _built_in_config(crumbs: Crumbs, consumer: str) -> dict[str, Any]:
    """Return the config of the package, for another consumer."""
    (config,) = crumbs.server.parts.configs.file_configs
    return {**config.archived_document(), "consumer_id": consumer}
