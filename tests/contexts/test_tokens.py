"""The token estimate compared with real counts, and the real tokenizer if it is installed."""

from __future__ import annotations

import builtins
import statistics
import sys
from types import ModuleType
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from breadcrumbs.context_builder.tokens import O200kCounter, TokenEstimator, token_counter
from tests.contexts.token_samples import SAMPLES


@pytest.fixture(autouse=True)
def fresh_counter() -> Any:
    token_counter.cache_clear()
    yield
    token_counter.cache_clear()


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_estimate_is_within_a_fifth_of_the_count(kind: str) -> None:
    counted, text = SAMPLES[kind]
    assert abs(TokenEstimator().count(text) - counted) <= 0.2 * counted


def test_the_estimate_is_within_a_tenth_on_average() -> None:
    errors = [abs(TokenEstimator().count(text) - counted) / counted for counted, text in SAMPLES.values()]
    assert statistics.fmean(errors) < 0.1


@given(st.text())
def test_the_estimate_accepts_any_text(text: str) -> None:
    assert 0 <= TokenEstimator().count(text) <= 4 * len(text)


def test_an_empty_text_has_no_tokens() -> None:
    assert TokenEstimator().count("") == 0


def test_the_tokens_of_a_long_text_are_the_sum_of_its_parts() -> None:
    text = SAMPLES["English prose"][1] + "\n"
    assert abs(TokenEstimator().count(text * 50) - 50 * TokenEstimator().count(text)) <= 50


def test_without_a_tokenizer_the_estimate_is_used_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "bpe_openai":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    counter = token_counter()
    assert counter.method == "estimate" and counter.count("Hello there") == 2


def test_an_installed_tokenizer_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses a fake module, because the package is an optional dependency."""

    class Encoding:
        def encode_ordinary(self, text: str) -> list[int]:
            return [0] * (len(text) + 1000)

    module = ModuleType("bpe_openai")
    module.get_encoding = {"o200k_base": Encoding()}.__getitem__  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bpe_openai", module)
    counter = token_counter()
    assert counter.method == "o200k"
    assert counter.count("four") == counter.count("four") == 1004
    assert counter.count("x" * 5000) == 6000


def test_a_failing_tokenizer_is_replaced_by_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bpe_openai", ModuleType("bpe_openai"))  # an empty module
    with structlog.testing.capture_logs() as logs:
        assert token_counter().method == "estimate"
    assert "estimating tokens" in logs[0]["event"]


def test_the_tokenizer_matches_the_table() -> None:
    pytest.importorskip("bpe_openai", reason="the extra breadcrumbs[tokens] is not installed")
    counter = O200kCounter()
    assert {kind: counter.count(text) for kind, (_, text) in SAMPLES.items()} == {
        kind: counted for kind, (counted, _) in SAMPLES.items()
    }
    assert counter.count("<|endoftext|>") == 7  # counted as plain text, not as a control token
