"""Tenants' counters: each sum is that of its requests, and names that clients make up take nobody's place."""

import json
import os
from datetime import UTC, datetime

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from picker.edge.telemetry import series
from picker.edge.telemetry.page import Telemetry
from picker.edge.telemetry.series import PART_LINES
from picker.edge.telemetry.tenants import ROWS_MAX, TenantBook
from picker.edge.telemetry.usage_file import UsageFile
from picker.edge.telemetry.view import PoolView
from picker.outcomes import Metered, Outcome, Reason, Usage
from tests.unit.edge.telemetry.test_page import finished


def used(tenant="acme", **more):
    given = {"metered": Metered.REPORTED, "charged": Usage(1000, 11, 800), "engine_seconds": 0.25}
    return finished(tenant=tenant, **{**given, **more})


def page_of(source):
    samples = (sample for each in parse_text("".join(source)) for sample in each.samples)
    return {(s.name.removeprefix("picker_tenant_"), *sorted(s.labels.items())): s.value for s in samples}


def rows(book, name):
    found = page_of(book.parts(False))
    return {tuple(value for _, value in key[1:]): value for key, value in found.items() if key[0] == name}


def test_each_sum_is_that_of_its_requests_apart_by_how_well_they_are_known():
    book = TenantBook(10, lambda name: False)
    for _ in range(3):
        book.count(used(), "m")
    book.count(used(metered=Metered.PARTIAL, charged=Usage(10, None, None), engine_seconds=None), "m")
    book.count(used(metered=Metered.UNKNOWN, charged=None, engine_seconds=None), "m")
    book.count(used(None), "other-model")
    book.count(used(outcome=Outcome.UNSEEN), "m")
    assert rows(book, "requests_total") == {
        ("m", "acme", "reported"): 3,
        ("m", "acme", "partial"): 1,
        ("m", "acme", "unknown"): 1,
        ("other-model", "", "reported"): 1,
    }
    assert rows(book, "prompt_tokens_total") == {
        ("m", "acme", "reported"): 3000,
        ("m", "acme", "partial"): 10,
        ("other-model", "", "reported"): 1000,
    }
    assert rows(book, "cached_tokens_total")[("m", "acme", "reported")] == 2400
    assert rows(book, "output_tokens_total")[("m", "acme", "reported")] == 33
    assert rows(book, "engine_seconds_total")[("m", "acme", "reported")] == pytest.approx(0.75)


def test_made_up_names_take_no_place_of_those_that_are_configured_or_were_served():
    book = TenantBook(2, {"late"}.__contains__)
    for number in range(50):
        book.count(used(f"refused-{number}", metered=Metered.NONE, charged=None), "m")
    for tenant in ("acme", "globex", "made-up", "late"):
        book.count(used(tenant), "m")
    assert {tenant for _, tenant, _ in rows(book, "requests_total")} == {"acme", "globex", "late", "other"}


def test_tenants_of_the_configuration_have_places_of_their_own_however_many_others_have():
    listed = {f"listed-{number}" for number in range(50)}
    for tenants_max in (0, 10):
        book = TenantBook(tenants_max, listed.__contains__)
        others = {f"other-{number}" for number in range(20)}
        for tenant in (*sorted(others), *sorted(listed)):
            book.count(used(tenant), "m")
        found = {tenant for _, tenant, _ in rows(book, "requests_total")}
        assert found >= listed | {"other"} and len(found & others) == tenants_max


def test_no_part_of_the_page_renders_all_rows(monkeypatch):
    book = TenantBook(ROWS_MAX, lambda name: False)
    for number in range(1000):
        book.count(used(f"t{number}"), "m")
    rendered = []
    monkeypatch.setattr(series, "_escaped", rendered.append)
    parts = book.parts(False)
    first = next(parts)
    assert rendered == [] and first.count("\n") <= PART_LINES + 1


def test_rows_are_bounded():
    book = TenantBook(2 * ROWS_MAX, lambda name: False)
    for number in range(ROWS_MAX + 100):
        book.count(used(f"t{number}"), "m")
    found = rows(book, "requests_total")
    assert len(found) == ROWS_MAX + 1 and found[("other", "other", "reported")] == 100


def test_they_stand_on_the_page_of_the_picker():
    telemetry = Telemetry(lambda: PoolView(pool_name="pool"))
    telemetry.finished(used())
    key = ("prompt_tokens_total", ("model_name", "m"), ("tenant", "acme"), ("usage", "reported"))
    assert page_of(telemetry.parts())[key] == 1000


def test_the_file_has_a_line_a_request_and_goes_on_after_a_restart(tmp_path):
    path = tmp_path / "usage.jsonl"
    at = datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)
    for number in range(2):
        file = UsageFile(path, clock=lambda: at)
        file.finished(used(request_id=f"r{number}", endpoint_name="vllm-0", model="m\ud800"))
        file.finished(used(outcome=Outcome.SHED, reason=None))
        file.close()
        with path.open("ab") as cut:
            cut.write(b'{"at": "cut by a cra')
    first, second, _ = path.read_bytes().split(b"\n")
    assert [json.loads(line)["request_id"] for line in (first, second)] == ["r0", "r1"]
    assert json.loads(first) == {
        "at": "2026-01-31T12:00:00.123Z",
        "request_id": "r0",
        "tenant": "acme",
        "model": "m?",
        "api": "chat_completions",
        "endpoint": "vllm-0",
        "status": 200,
        "outcome": "completed",
        "usage": "reported",
        "input_tokens": 1000,
        "cached_tokens": 800,
        "output_tokens": 11,
        "engine_seconds": 0.25,
        "duration_seconds": 2.4,
    }


def test_a_file_that_others_rotate_is_begun_anew(tmp_path):
    path = tmp_path / "usage.jsonl"
    file = UsageFile(path, clock=lambda: datetime.now(UTC))
    for name in ("first", "second"):
        file.finished(used(request_id=name, reason=Reason.LOAD))
        file.flush()
        path.rename(tmp_path / name)
    file.finished(used(request_id="third"))
    file.close()
    kept = [json.loads((tmp_path / name).read_text())["request_id"] for name in ("first", "second", "usage.jsonl")]
    assert kept == ["first", "second", "third"] and file.lost == 0


def test_a_file_that_others_copy_and_empty_goes_on_from_its_beginning(tmp_path):
    path = tmp_path / "usage.jsonl"
    path.write_bytes(b"{}\n" * 100)  # taken up after a restart
    file = UsageFile(path, clock=lambda: datetime.now(UTC))
    kept = []
    for name in ("first", "second", "third"):
        file.finished(used(request_id=name))
        file.flush()
        kept.append(path.read_bytes())
        os.truncate(path, 0)
    file.close()
    assert [json.loads(each.splitlines()[-1])["request_id"] for each in kept] == ["first", "second", "third"]
    assert [each.count(b"\n") for each in kept] == [101, 1, 1] and not any(b"\0" in each for each in kept)


def test_what_is_no_usage_file_is_put_aside_not_cut(tmp_path):
    path = tmp_path / "usage.jsonl"
    path.write_text("somebody's notes without an end of line")
    UsageFile(path, clock=lambda: datetime.now(UTC)).close()
    assert (tmp_path / "usage.jsonl.1").read_text() == "somebody's notes without an end of line"
