"""The code blocks of docs/frameworks.md run unchanged, with a model that needs no network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from markdown_it import MarkdownIt

from tests.client.support import CrumbUp, environment

ROOT = Path(__file__).resolve().parents[2]

# The tests replace only the model provider: every model name gives the reciting model.
PREAMBLE = f"""
import sys
import agents
from agents.models.multi_provider import MultiProvider
sys.path.append({str(ROOT)!r})
from tests.frameworks.fake_openai import RecitingModel
MultiProvider.get_model = lambda self, name: RecitingModel()
agents.set_tracing_disabled(True)
"""


def test_the_blocks_of_the_document_run_one_after_the_other(up: CrumbUp, tmp_path: Path) -> None:
    tokens = MarkdownIt("commonmark").parse((ROOT / "docs" / "frameworks.md").read_text("utf-8"))
    blocks = [token.content for token in tokens if token.type == "fence" and token.info == "python"]
    assert len(blocks) == 3
    ended = subprocess.run(
        [sys.executable, "-c", "\n".join([PREAMBLE, *blocks])],
        env=environment(CRUMB_URL=up.url),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    question = "What city is the Golden Gate Bridge in?"
    assert ended.stdout.splitlines() == [
        question,
        f"{question} | What state is it in?",
        "4",
        "human Is it raining?",
        "ai Not yet.",
    ]
