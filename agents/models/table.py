"""The table of models: context windows, prices, and whether a model accepts images.

`config/models.toml` has the well-known models. The setting `models.table` names a file with more entries, which people
can edit while everything runs. The settings `models.windows` and `models.prices` have priority over both.
"""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import structlog
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from breadcrumbs.runtime.breadcrumb.validation import error_lines
from breadcrumbs.runtime.errors import StartupError

_log = structlog.get_logger("breadcrumbs.models")

MAX_ENTRIES: Final = 1_000
_MAX_BYTES: Final = 1 << 20
_CHECK_SECONDS: Final = 1.0
"""Seconds between two looks at the file."""
_MAX_TABLES: Final = 64

_NUMBER: Final = re.compile(r"(?<=-\d)-(?=\d\b)")
"""The hyphen in `claude-sonnet-4-5`. Some providers write `claude-sonnet-4.5`."""

PricePerMillion = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
WindowSize = Annotated[int, Field(ge=1, le=1 << 31)]
V = TypeVar("V")


class ModelFacts(BaseModel):
    """One entry of the table. None: unknown."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    window: WindowSize | None = None
    price: tuple[PricePerMillion, PricePerMillion] | None = None
    images: bool | None = None


Entries = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=300)], ModelFacts], Field(max_length=MAX_ENTRIES)
]
_ENTRIES: Final[TypeAdapter[dict[str, ModelFacts]]] = TypeAdapter(Entries)


class InvalidTable(ValueError):
    """A file is not a valid table. The message names the position."""


def parse_table(raw: bytes) -> dict[str, ModelFacts]:
    """Return the entries of a file. Raise `InvalidTable`."""
    if len(raw) > _MAX_BYTES:
        raise InvalidTable(f"the file has more than {_MAX_BYTES:,} bytes")
    try:
        document = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidTable(f"not TOML: {error}") from None
    except RecursionError:
        raise InvalidTable("not a table: it is nested too deeply") from None
    try:
        entries = _ENTRIES.validate_python(document)
    except ValidationError as error:
        raise InvalidTable(error_lines(error).strip()) from None
    return {name.lower(): facts for name, facts in entries.items()}


@lru_cache(maxsize=1)
def builtin_entries() -> dict[str, ModelFacts]:
    """Return the entries that come with the package."""
    return parse_table(files("breadcrumbs.config").joinpath("models.toml").read_bytes())


class ModelTable:
    """The entries of the package and of a file, which is read again when it changes."""

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raise `StartupError` if the file cannot be read or is invalid."""
        self.path = path
        self.problem = ""
        """Why the present content of the file is not in force. Empty: it is."""
        self._clock = clock
        self._stamp: tuple[int, int] | None = None
        self._entries: dict[str, ModelFacts] = {}
        self._next_check = 0.0
        problem = self._read()
        if problem:
            raise StartupError(f"the model table {path} cannot be used: {problem}")

    @property
    def own_entries(self) -> dict[str, ModelFacts]:
        """The entries of the file."""
        if self.path is not None and self._clock() >= self._next_check:
            self._reload()
        return self._entries

    def entries(self) -> dict[str, ModelFacts]:
        """Return all entries. The fields of the file have priority."""
        merged = dict(builtin_entries())
        for name, facts in self.own_entries.items():
            known = merged.get(name, ModelFacts())
            merged[name] = known.model_copy(update=facts.model_dump(exclude_none=True))
        return merged

    def window(self, model: str) -> int | None:
        """Return the context window of a model in tokens, or None if it is unknown."""
        return self._find(model, lambda facts: facts.window)

    def accepts_images(self, model: str) -> bool:
        return bool(self._find(model, lambda facts: facts.images))

    def price(self, model: str) -> tuple[float, float] | None:
        """Return the price of a million input and output tokens. Only an entry with the whole name applies."""
        entries = self.own_entries
        for name in _names(model):
            facts = entries.get(name)
            if facts is not None and facts.price is not None:
                return facts.price
        return None

    def _find(self, model: str, value: Callable[[ModelFacts], V | None]) -> V | None:
        """Return a fact of the entry with the longest matching name. An entry of the file wins over a built-in one."""
        for entries in (self.own_entries, builtin_entries()):
            for name in _names(model):
                known = [one for one in entries if _is_of(name, one) and value(entries[one]) is not None]
                if known:
                    return value(entries[max(known, key=len)])
        return None

    def _reload(self) -> None:
        problem = self._read()
        if problem and problem != self.problem:
            _log.error("model table not used, keeping the last valid one", path=str(self.path), error=problem)
        elif self.problem and not problem:
            _log.info("model table is valid again", path=str(self.path))
        self.problem = problem

    def _read(self) -> str:
        """Read the file if it has changed. Return why its content is not used, or an empty text."""
        self._next_check = self._clock() + _CHECK_SECONDS
        if self.path is None:
            return ""
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return self.problem
            self._stamp = stamp
            self._entries = parse_table(self.path.read_bytes())
        except OSError as error:
            self._stamp = None
            return f"it cannot be read: {error.strerror}"
        except InvalidTable as error:
            return str(error)
        return ""


_tables: dict[Path | None, ModelTable] = {}


def table_in(models: Mapping[str, Any]) -> ModelTable:
    """Return the table of the setting `models`. All users of a file in a process share it."""
    given = models.get("table")
    path = Path(given) if isinstance(given, str | Path) and str(given) else None
    if path not in _tables:
        if len(_tables) >= _MAX_TABLES:
            _tables.clear()
        _tables[path] = ModelTable(path)
    return _tables[path]


class LiveValues(Mapping[str, V]):
    """Values by model: those of the settings, then those of a table as it is now."""

    def __init__(
        self, given: Mapping[str, V], find: Callable[[str], V | None], names: Callable[[], list[str]]
    ) -> None:
        """`find` looks a model up in the table, and `names` lists the entries of its file."""
        self._given = given
        self._find = find
        self._names = names

    def __getitem__(self, model: str) -> V:
        for name in (model, bare_name(model)):
            if (given := self._given.get(name)) is not None:
                return given
        if (found := self._find(model)) is None:
            raise KeyError(model)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._given, *self._names()]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _names(model: str) -> tuple[str, str]:
    """Return the name of a model with and without its provider."""
    full = model.lower()
    return full, _NUMBER.sub(".", bare_name(full))


def bare_name(model: str) -> str:
    """Return the name of a model without its provider."""
    return model.rpartition("/")[2] if "/" in model else model.partition(":")[2] or model


def _is_of(name: str, known: str) -> bool:
    return name.startswith(known) and name[len(known) :][:1] in ("", "-", ":")
