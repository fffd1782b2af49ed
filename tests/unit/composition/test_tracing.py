"""Start and end of tracing. A process has one provider of OpenTelemetry, so each test runs a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

HEAD = """
import anyio
from breadcrumbs.composition.tracing import traced_process, traced_task
from breadcrumbs.runtime.settings.settings import Settings
from breadcrumbs.runtime.telemetry import tracing
"""


def run(script: str, **environment: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", HEAD + script],
        env={**os.environ, "OTEL_TRACES_EXPORTER": "console", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_program_can_trace_several_blocks_one_after_the_other() -> None:
    script = """
async def main():
    for name in ("first", "second"):
        async with traced_task(Settings(tracing=True), "breadcrumbs-agent-runner"):
            with tracing.active.span(name, {}):
                pass
        assert tracing.active is None
anyio.run(main)
"""
    shown = run(script)
    assert '"name": "first"' in shown and '"name": "second"' in shown
    assert '"service.name": "breadcrumbs-agent-runner"' in shown


def test_the_provider_of_the_program_has_priority() -> None:
    script = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
async def main():
    async with traced_task(Settings(tracing=True), "x"):
        with trace.get_tracer("mine").start_as_current_span("outer"), tracing.active.span("inner", {}):
            pass
anyio.run(main)
inner, outer = exporter.get_finished_spans()
assert inner.parent.span_id == outer.context.span_id
"""
    assert run(script) == ""


def test_the_variables_of_opentelemetry_are_respected() -> None:
    script = """
with traced_process(Settings(tracing=True), "breadcrumbs-api"):
    with tracing.active.span("one", {}):
        pass
"""
    named = run(script, OTEL_SERVICE_NAME="mine", OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test")
    assert '"service.name": "mine"' in named and '"deployment.environment.name": "test"' in named
    attributed = run(script, OTEL_RESOURCE_ATTRIBUTES="service.name=theirs")
    assert '"service.name": "theirs"' in attributed
    assert run(script, OTEL_TRACES_SAMPLER="always_off") == ""
    assert run(script, OTEL_TRACES_EXPORTER="none") == ""
    off = "with traced_process(Settings(tracing=True), 'x'):\n    assert tracing.active is None\n"
    assert run(off, OTEL_SDK_DISABLED="true") == ""
