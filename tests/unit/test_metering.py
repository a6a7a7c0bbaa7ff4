"""Whose request, how well its tokens are known, and what the proxy is told, by the rules of docs/usage.md."""

import pytest

from picker.config import Config, ProxyMetadata, Tenants
from picker.decision import Finished
from picker.metering import TENANT_CHARS_MAX, Metering
from picker.outcomes import Metered, Outcome, Reason, Usage

TELLS = Config(proxy_metadata=ProxyMetadata(namespace="ours"))


def record(**more):
    given = {"outcome": Outcome.COMPLETED, "status": 200, "reason": Reason.AFFINITY, "prompt_tokens_estimate": 90}
    return Finished(**{**given, **more})


@pytest.mark.parametrize(
    ("header", "headers", "tenant"),
    [
        (None, {}, None),
        (None, {"x-gateway-inference-fairness-id": "a"}, "a"),
        (None, {"x-llm-d-inference-fairness-id": "b"}, "b"),
        (None, {"x-gateway-inference-fairness-id": "", "x-llm-d-inference-fairness-id": "b"}, "b"),
        ("X-Tenant", {"x-tenant": "c", "x-gateway-inference-fairness-id": "a"}, "c"),
        ("X-Tenant", {"x-gateway-inference-fairness-id": "a"}, None),
    ],
)
def test_the_tenant_is_what_the_configured_header_says_else_the_fairness_id(header, headers, tenant):
    assert Metering(Config(tenants=Tenants(header=header))).tenant(headers) == tenant


def test_a_tenants_name_has_a_longest_length():
    named = Metering(Config()).tenant({"x-gateway-inference-fairness-id": "n" * 10_000})
    assert named == "n" * TENANT_CHARS_MAX


@pytest.mark.parametrize(
    ("estimates", "usage", "more", "metered", "charged"),
    [
        (False, Usage(100, 20, 64), {}, Metered.REPORTED, Usage(100, 20, 64)),
        (False, Usage(100, None, None), {}, Metered.REPORTED, Usage(100, None, None)),
        (False, Usage(None, 20, None), {}, Metered.PARTIAL, Usage(None, 20, None)),
        (False, Usage(100, 3, 64), {"outcome": Outcome.ABORTED}, Metered.PARTIAL, Usage(100, 3, 64)),
        (False, None, {}, Metered.UNKNOWN, None),
        (False, Usage(None, None, None), {}, Metered.UNKNOWN, None),
        (False, None, {"outcome": Outcome.ABORTED, "status": None}, Metered.UNKNOWN, None),
        (True, None, {}, Metered.ESTIMATED, Usage(90, 7, None)),
        (True, Usage(100, 20, 64), {}, Metered.REPORTED, Usage(100, 20, 64)),
        (True, None, {"prompt_tokens_estimate": None}, Metered.UNKNOWN, None),
        (True, Usage(100, 20, 64), {"status": 503}, Metered.NONE, None),
        (True, None, {"status": 400}, Metered.NONE, None),
    ],
)
def test_what_is_charged_is_what_was_reported_and_says_how_well_it_is_known(estimates, usage, more, metered, charged):
    made = record(**more)
    Metering(Config(tenants=Tenants(estimates=estimates))).meter(made, usage, prefills=True, content_events=7)
    assert (made.metered, made.charged) == (metered, charged)


def test_what_no_engine_computes_is_charged_nothing():
    made = record()
    Metering(Config(tenants=Tenants(estimates=True))).meter(made, None, prefills=False, content_events=None)
    assert (made.metered, made.charged) == (Metered.NONE, None)


def test_the_proxy_is_told_what_is_known_and_nothing_else():
    metering = Metering(TELLS)
    assert metering.told(record()) == ("ours", (("reason", "affinity"),))
    made = record(
        matched_share=0.756,
        predicted_ttft_seconds=0.1201,
        ttft_seconds=0.2,
        tenant="acme",
        metered=Metered.PARTIAL,
        charged=Usage(100, 20, None),
        engine_seconds=0.00001,
    )
    namespace, pairs = metering.told(made)
    assert namespace == "ours"
    assert dict(pairs) == {
        "reason": "affinity",
        "matched_percent": 76,
        "predicted_ttft_ms": 121,
        "ttft_ms": 200,
        "tenant": "acme",
        "usage": "partial",
        "input_tokens": 100,
        "output_tokens": 20,
        "total_tokens": 120,
        "engine_ms": 1,
    }


def test_keys_are_renamed_and_left_out_as_configured():
    keys = {"total_tokens": "llm_total_token", "reason": "why"}
    metering = Metering(Config(proxy_metadata=ProxyMetadata(namespace="io.envoy.ai_gateway", keys=keys)))
    assert metering.why(Reason.LOAD) == ("io.envoy.ai_gateway", (("why", "load"),))
    told = metering.told(record(charged=Usage(100, 20, 64), metered=Metered.REPORTED))
    assert told == ("io.envoy.ai_gateway", (("llm_total_token", 120), ("why", "affinity")))


def test_nothing_is_told_where_nothing_is_configured():
    for config in (Config(), Config(proxy_metadata=ProxyMetadata(namespace="ours", keys={}))):
        metering = Metering(config)
        assert metering.told(record()) is None and metering.why(Reason.LOAD) is None
