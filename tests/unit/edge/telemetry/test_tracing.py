"""Spans reach a real OTLP receiver, with the client's trace, the record's figures and nothing of a prompt."""

import asyncio
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator

import pytest

from picker.config import Config, ConfigError, Tracing, load
from picker.decision import Booking, Finished, Picked
from picker.edge.telemetry import tracing
from picker.edge.telemetry.tracing import Tracer, attributes
from picker.outcomes import EndpointView, Explanation, Metered, Outcome, Reason, Usage
from picker.pool.endpoint import Endpoint
from picker.pool.inflight import Charge
from picker.pool.specs import EndpointSpec
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


def view(address, cost_seconds, *, picked=False, name=None):
    seconds = {"prefix": cost_seconds / 2, "queue": cost_seconds / 2}
    return EndpointView(address, name or f"pod-{address}", 0.75, seconds, cost_seconds, picked, "because")


def pick(*views, asked=None):
    """A decision that shows these candidates. `asked`: gets a word whenever its explanation is made."""
    views = views or (view("10.0.0.1:8000", 0.2, picked=True), view("[fd00::2]:8000", 0.3))
    endpoint = Endpoint(EndpointSpec(address=views[0].address, uid="1", name=views[0].name), 0)
    charge = Charge(endpoint, prefill_tokens=0.0, context_tokens=0.0, memory_tokens=0.0, now=0.0)

    def explain():
        if asked is not None:
            asked.append("explained")
        return Explanation("affinity", "it holds the prefix", 1000, 4, views)

    return Picked((views[0].address,), Reason.AFFINITY, 0.75, Booking(charge, array("Q"), None, "m", None), explain)


def sent(collector, *records, ratio=1.0, picked=None, clock=time.time_ns, turns=1):
    """What arrives of these records after a flush: of requests, and of decisions."""

    async def run():
        settings = Tracing(otlp_endpoint=collector.url, sample_ratio=ratio)
        tracer = Tracer(settings, pool_name="pool-a", clock=clock)
        for each in records:
            if each.reason is not None:
                tracer.decided(picked or pick(), each)
        for _ in range(turns):
            await asyncio.sleep(0)
        for each in records:
            tracer.finished(each)
        await tracer.close()

    asyncio.run(run())
    return collector.spans


def requests(spans):
    return [span for span in spans if span.name != "picker.decision"]


def decisions(spans):
    return [span for span in spans if span.name == "picker.decision"]


def test_a_request_is_a_span_with_its_figures(collector):
    before = time.time_ns()
    (span,) = requests(sent(collector, record()))
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
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 908,
        "gen_ai.usage.output_tokens": 6,
    }
    resource = collector.requests[0].resource_spans[0].resource
    told = {each.key: each.value.string_value for each in resource.attributes}
    assert (told["service.name"], told["picker.pool"]) == ("inference-picker", "pool-a")


def test_a_decision_is_a_span_of_its_request_with_an_event_for_each_candidate(collector):
    spans = sent(collector, record(tenant="red", predicted_ttft_seconds=0.25))
    (parent,), (span,) = requests(spans), decisions(spans)
    assert (span.trace_id, span.parent_span_id) == (parent.trace_id, parent.span_id)
    assert parent.start_time_unix_nano <= span.start_time_unix_nano
    assert span.end_time_unix_nano - span.start_time_unix_nano == 100_000  # decision_seconds
    assert span.end_time_unix_nano <= parent.end_time_unix_nano
    assert said(span) == {
        "picker.reason": "affinity",
        "picker.summary": "it holds the prefix",
        "picker.prompt_tokens": 1000,
        "picker.matched_share": 0.75,
        "picker.predicted_ttft_seconds": 0.25,
        "picker.tenant": "red",
        "picker.endpoint": "10.0.0.1:8000",
        "picker.endpoint_name": "pod-10.0.0.1:8000",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "server.address": "10.0.0.1",
        "server.port": 8000,
    }
    assert said(parent)["picker.tenant"] == "red"
    assert [event.name for event in span.events] == ["picker.candidate"] * 2
    assert {event.time_unix_nano for event in span.events} == {span.end_time_unix_nano}
    assert said(span.events[1]) == {
        "picker.endpoint": "[fd00::2]:8000",
        "picker.endpoint_name": "pod-[fd00::2]:8000",
        "server.address": "fd00::2",
        "server.port": 8000,
        "picker.picked": False,
        "picker.matched_share": 0.75,
        "picker.cost_seconds": 0.3,
        "picker.seconds.prefix": 0.15,
        "picker.seconds.queue": 0.15,
        "picker.why": "because",
    }


def test_usage_is_said_with_how_well_it_is_known(collector):
    (span,) = requests(sent(collector, record(metered=Metered.REPORTED, engine_seconds=0.5)))
    assert (said(span)["picker.usage"], said(span)["picker.engine_seconds"]) == ("reported", 0.5)


def test_the_pick_and_the_cheapest_others_are_shown(collector):
    """36 candidates in the order of an explanation: the pick, holders, others."""
    costs = [5.0, *(0.1 * n for n in range(35, 0, -1))]
    picked = pick(*(view(f"10.0.0.{n}:80", cost, picked=n == 0) for n, cost in enumerate(costs)))
    (span,) = decisions(sent(collector, record(), picked=picked))
    shown = [said(event)["picker.cost_seconds"] for event in span.events]
    assert shown == pytest.approx([5.0, *(0.1 * n for n in range(1, 12))])
    assert tracing.CANDIDATES_MAX == 12


@pytest.mark.parametrize("turns", [0, 8])
def test_each_sampled_decision_is_explained_once(collector, turns):
    """Also where the request is over before its turn came."""
    asked = []
    spans = sent(collector, *(record() for _ in range(5)), picked=pick(asked=asked), turns=turns)
    assert len(asked) == 5
    assert [len(span.events) for span in decisions(spans)] == [2] * 5


def test_one_decision_is_explained_in_a_turn_of_the_loop(collector):
    async def run():
        asked = []
        tracer = Tracer(Tracing(otlp_endpoint=collector.url, sample_ratio=1.0), pool_name="p")
        for _ in range(3):
            tracer.decided(pick(asked=asked), record())
        assert asked == []
        seen = []
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(len(asked))
        await tracer.close()
        assert seen == [1, 2, 3]

    asyncio.run(run())


def test_who_is_not_sampled_is_not_explained(collector):
    asked = []
    unsampled = [record(trace_parent=NOT_SAMPLED), record()]
    assert sent(collector, *unsampled, ratio=0.0, picked=pick(asked=asked), turns=3) == []
    assert asked == []


def test_a_decision_lies_within_its_request_when_the_wall_clock_is_set_back(collector):
    now = iter([10_000_000_000_000, 9_000_000_000_000])
    spans = sent(collector, record(), clock=lambda: next(now))
    (parent,), (span,) = requests(spans), decisions(spans)
    assert parent.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    assert span.end_time_unix_nano <= parent.end_time_unix_nano == 9_000_000_000_000


def test_what_was_refused_has_no_decision(collector):
    shed = record(status=429, outcome=Outcome.SHED, reason=None, reject_word="saturated")
    (span,) = sent(collector, shed)
    assert said(span)["picker.refusal"] == "saturated"


def test_sampled_requests_that_are_open_are_bounded(collector, monkeypatch):
    monkeypatch.setattr(tracing, "OPEN_MAX", 2)
    spans = sent(collector, *(record(request_id=str(n)) for n in range(4)))
    assert {said(span)["picker.request_id"] for span in requests(spans)} == {"0", "1"}


def test_names_are_those_of_the_conventions():
    """As the package of OpenTelemetry's semantic conventions has them."""
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
    from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes

    known = {
        value
        for module in (gen_ai_attributes, error_attributes, http_attributes, server_attributes)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    failed = record(status=500, outcome=Outcome.FAILED, usage=Usage(1, 2, 3))
    used = {*attributes(failed), *tracing.candidate_attributes(view("10.0.0.1:80", 1.0))}
    ours = {name for name in used if name.startswith("picker.")}
    assert used - ours - known == set()
    assert {"gen_ai.usage.cache_read.input_tokens", "server.port", "error.type"} <= used
    operations = {value.value for value in gen_ai_attributes.GenAiOperationNameValues}
    assert set(tracing._OPERATIONS.values()) <= operations


def test_the_clients_trace_goes_on(collector):
    (span,) = requests(sent(collector, record(trace_parent=SAMPLED), ratio=0.0))
    assert span.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert span.parent_span_id.hex() == "00f067aa0ba902b7" and span.span_id != span.parent_span_id


@pytest.mark.parametrize(("trace_parent", "ratio"), [(NOT_SAMPLED, 1.0), (None, 0.0), ("nonsense", 0.0)])
def test_what_is_not_sampled_is_not_sent(collector, trace_parent, ratio):
    assert sent(collector, record(trace_parent=trace_parent), record(trace_parent=trace_parent), ratio=ratio) == []


@pytest.mark.parametrize(
    "bad", ["", "nonsense", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", "ff-" + SAMPLED[3:], "\x00" * 256]
)
def test_a_parent_that_is_none_starts_a_trace(collector, bad):
    (span,) = requests(sent(collector, record(trace_parent=bad)))
    assert span.parent_span_id == b"" and any(span.trace_id)


def test_a_ratio_samples_about_that_share(collector):
    count = len(requests(sent(collector, *(record() for _ in range(1000)), ratio=0.25)))
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
    (span,) = requests(sent(collector, record(**fields)))
    assert span.status.code == code
    error = fields.get("reject_word") or str(fields["status"])
    assert said(span).get("error.type") == (error if code == ERROR else None)
    assert said(span).get("picker.refusal") == fields.get("reject_word")


def test_what_no_request_was_shown_for_is_no_span(collector):
    assert sent(collector, record(outcome=Outcome.UNSEEN)) == []


def test_unknown_figures_are_left_out():
    assert set(attributes(Finished(outcome=Outcome.ABORTED))) == {"picker.api", "picker.outcome", "picker.priority"}


PROGRAM = """
import asyncio, sys
from picker.config import Tracing
from picker.decision import Finished, Outcome
from picker.edge.telemetry import tracing
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
