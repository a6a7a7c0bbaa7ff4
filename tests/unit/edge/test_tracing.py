"""Spans reach a real OTLP receiver, with the client's trace, the record's figures and nothing of a prompt."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from picker.config import Config, ConfigError, Tracing, load
from picker.decision import Finished
from picker.edge.tracing import Tracer, attributes
from picker.outcomes import Outcome, Reason, Usage
from tests.otlp_collector import Collector, said

SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
NOT_SAMPLED = SAMPLED[:-1] + "0"
"""The example of W3C Trace Context, with its flag set and not."""
ERROR = 2
"""opentelemetry.proto.trace.v1.Status.STATUS_CODE_ERROR"""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as opened:
        yield opened


def record(**more):
    return Finished(
        **{
            "outcome": Outcome.COMPLETED,
            "path": "chat_completions",
            "model": "m",
            "status": 200,
            "reason": Reason.AFFINITY,
            "address": "10.0.0.1:8000",
            "matched_share": 0.75,
            "decision_seconds": 0.0001,
            "ttft_seconds": 0.2,
            "duration_seconds": 1.5,
            "request_id": "abc",
            "usage": Usage(input_tokens=908, output_tokens=6),
            **more,
        }
    )


def sent(collector, *records, ratio=1.0):
    """What arrives of these records after a flush."""

    async def run():
        tracer = Tracer(Tracing(otlp_endpoint=collector.url, sample_ratio=ratio), pool_name="pool-a")
        for each in records:
            tracer.finished(each)
        await tracer.close()

    asyncio.run(run())
    return collector.spans


def test_a_request_is_one_span_with_its_figures(collector):
    before = time.time_ns()
    (span,) = sent(collector, record())
    assert span.name == "route chat_completions"
    assert span.end_time_unix_nano - span.start_time_unix_nano == 1_500_000_000
    assert before <= span.end_time_unix_nano <= time.time_ns()
    assert said(span) == {
        "picker.api": "chat_completions",
        "picker.outcome": "completed",
        "picker.reason": "affinity",
        "picker.endpoint": "10.0.0.1:8000",
        "picker.matched_share": 0.75,
        "picker.decision_seconds": 0.0001,
        "picker.ttft_seconds": 0.2,
        "picker.priority": 0,
        "picker.request_id": "abc",
        "http.response.status_code": 200,
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 908,
        "gen_ai.usage.output_tokens": 6,
    }
    resource = collector.requests[0].resource_spans[0].resource
    told = {each.key: each.value.string_value for each in resource.attributes}
    assert (told["service.name"], told["picker.pool"]) == ("inference-picker", "pool-a")


def test_the_clients_trace_goes_on(collector):
    (span,) = sent(collector, record(trace_parent=SAMPLED), ratio=0.0)
    assert span.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert span.parent_span_id.hex() == "00f067aa0ba902b7" and span.span_id != span.parent_span_id


@pytest.mark.parametrize(("trace_parent", "ratio"), [(NOT_SAMPLED, 1.0), (None, 0.0), ("nonsense", 0.0)])
def test_what_is_not_sampled_is_not_sent(collector, trace_parent, ratio):
    assert sent(collector, record(trace_parent=trace_parent), record(trace_parent=trace_parent), ratio=ratio) == []


@pytest.mark.parametrize(
    "bad", ["", "nonsense", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", "ff-" + SAMPLED[3:], "\x00" * 256]
)
def test_a_parent_that_is_none_starts_a_trace(collector, bad):
    (span,) = sent(collector, record(trace_parent=bad))
    assert span.parent_span_id == b"" and any(span.trace_id)


def test_a_ratio_samples_about_that_share(collector):
    count = len(sent(collector, *(record() for _ in range(1000)), ratio=0.25))
    assert 180 < count < 330  # five standard deviations of a binomial around 250


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"status": 503, "outcome": Outcome.UNAVAILABLE, "reason": None, "reject_word": "no_endpoints"}, ERROR),
        ({"status": 500, "outcome": Outcome.FAILED}, ERROR),
        ({"status": 400, "outcome": Outcome.REJECTED}, 0),
        ({"status": 200}, 0),
    ],
)
def test_faults_of_servers_are_errors_and_those_of_clients_are_not(collector, fields, code):
    (span,) = sent(collector, record(**fields))
    assert span.status.code == code
    assert said(span).get("picker.refusal") == fields.get("reject_word")


def test_what_no_request_was_shown_for_is_no_span(collector):
    assert sent(collector, record(outcome=Outcome.UNSEEN)) == []


def test_unknown_figures_are_left_out():
    assert set(attributes(Finished(outcome=Outcome.ABORTED))) == {"picker.api", "picker.outcome", "picker.priority"}


PROGRAM = """
import asyncio, sys
from picker.config import Tracing
from picker.decision import Finished, Outcome
from picker.edge import tracing
tracing.CLOSE_SECONDS_MAX = 0.05
async def run():
    tracer = tracing.Tracer(Tracing(otlp_endpoint=sys.argv[1], sample_ratio=1.0), pool_name="p")
    for _ in range(3 * tracing.QUEUE_SPANS_MAX):
        tracer.finished(Finished(outcome=Outcome.COMPLETED, path="other"))
    await tracer.close()
    print("ended")
asyncio.run(run())
"""
"""In a process of its own: the exporter's thread goes on trying for a while."""


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "away"])
def test_a_collector_that_does_not_answer_keeps_nobody_from_ending(hangs):
    with Collector(hang=True) as collector:
        url = collector.url if hangs else "http://127.0.0.1:1"
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, url], capture_output=True, text=True, check=True, timeout=60
        )
    assert run.stdout == "ended\n"


def test_the_extra_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"pip install 'inference-picker\[tracing\]'"):
        Tracer(Tracing(otlp_endpoint="http://127.0.0.1:1"), pool_name="p")


def test_off_by_default_and_then_nothing_of_it_is_loaded():
    assert Config().tracing == Tracing(otlp_endpoint=None, sample_ratio=0.1)
    program = "import picker.wiring, sys; print([name for name in sys.modules if 'opentelemetry' in name])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_a_collector_without_a_scheme_is_refused_by_the_configuration():
    with pytest.raises(ConfigError, match=r"tracing\.otlp_endpoint"):
        load("tracing: {otlp_endpoint: 'collector:4317'}")
