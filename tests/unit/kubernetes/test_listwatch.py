"""The list/watch machine, rule by rule: what it asks for next, and when, after each thing a server can do."""

import json
from typing import Any

import pytest

from picker.kubernetes.backoff import Fault, Health
from picker.kubernetes.kubernetes_objects import Pod, read_pod
from picker.kubernetes.listwatch import ListWatch
from picker.kubernetes.watch_messages import Deleted, List, Replaced, Timing, Upserted, Wait, Watch


class Middle:
    """A generator that always says one half: every jitter is known."""

    def __init__(self, value: float = 0.5) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def pod(name: str, uid: str, version: str = "5", ready: bool = True) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": name, "uid": uid, "resourceVersion": version, "namespace": "ns"},
        "status": {"podIP": "10.0.0.1", "conditions": conditions},
    }


def page(*items: dict[str, Any], version: str = "10", more: str = "") -> bytes:
    return json.dumps({"metadata": {"resourceVersion": version, "continue": more}, "items": items}).encode()


def line(kind: str, thing: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def status(code: int, reason: str = "", message: str = "") -> bytes:
    return line("ERROR", {"kind": "Status", "code": code, "reason": reason, "message": message})


def machine(**timing: Any) -> ListWatch[Pod]:
    return ListWatch(read_pod, Middle(), selector={"labelSelector": "app=x"}, timing=Timing(**timing))


def listed(*items: dict[str, Any], at: float = 0.0, **timing: Any) -> ListWatch[Pod]:
    made = machine(**timing)
    assert isinstance(made.next_action(at), List)
    made.list_page(page(*items), at)
    return made


def watching(*items: dict[str, Any], at: float = 0.0, **timing: Any) -> ListWatch[Pod]:
    made = listed(*items, at=at, **timing)
    assert isinstance(made.next_action(at), Watch)
    made.watch_opened(at)
    return made


def names(made: ListWatch[Pod]) -> set[str]:
    made.check()
    return {each.name for each in made.objects.values()}


def next_request(made: ListWatch[Pod], now: float) -> tuple[List | Watch, float]:
    """The next request and the time it is made at."""
    action = made.next_action(now)
    if isinstance(action, Wait):
        now = action.until_seconds
        action = made.next_action(now)
    assert isinstance(action, List | Watch)
    return action, now


def test_first_list_asks_for_the_newest_state_in_pages_under_the_selector() -> None:
    action = machine().next_action(0.0)
    assert isinstance(action, List)
    assert action.params == {"labelSelector": "app=x", "limit": "500"}
    assert not action.fresh_credentials


def test_pages_become_visible_together() -> None:
    made = machine()
    made.next_action(0.0)
    assert made.list_page(page(pod("a", "1"), more="token"), 0.0) == []
    assert (names(made), made.synced) == (set(), False)
    action = made.next_action(0.0)
    assert isinstance(action, List)
    assert action.params["continue"] == "token"
    (change,) = made.list_page(page(pod("b", "2")), 0.0)
    assert isinstance(change, Replaced)
    assert {each.name for each in change.objects.values()} == names(made) == {"a", "b"}
    assert made.synced


def test_a_list_that_says_nothing_new_is_no_news() -> None:
    made = watching(pod("a", "1", version="5"))
    made.watch_bytes(status(410, "Expired"), 20.0)
    action, now = next_request(made, 20.0)
    assert isinstance(action, List)
    assert made.list_page(page(pod("a", "1", version="99")), now) == []


def test_watch_starts_at_the_version_of_the_list_with_bookmarks_and_a_jittered_timeout() -> None:
    made = listed(pod("a", "1"))
    action = made.next_action(0.0)
    assert isinstance(action, Watch)
    assert action.params == {
        "labelSelector": "app=x",
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": "10",
        "timeoutSeconds": "360",
    }
    assert action.idle_seconds == 90.0
    assert action.total_seconds == 390.0


@pytest.mark.parametrize("draw", [0.0, 0.999999])
def test_watch_timeout_is_between_240_and_480_seconds(draw: float) -> None:
    made = ListWatch(read_pod, Middle(draw), selector={})
    made.next_action(0.0)
    made.list_page(page(), 0.0)
    action = made.next_action(0.0)
    assert isinstance(action, Watch)
    assert 240 <= int(action.params["timeoutSeconds"]) <= 480


def test_events_add_change_and_remove() -> None:
    made = watching(pod("a", "1"))
    added = made.watch_bytes(line("ADDED", pod("b", "2")), 1.0)
    changed = made.watch_bytes(line("MODIFIED", pod("b", "2", version="6", ready=False)), 1.0)
    removed = made.watch_bytes(line("DELETED", pod("a", "1", version="7")), 1.0)
    assert [type(each) for each in (*added, *changed, *removed)] == [Upserted, Upserted, Deleted]
    assert names(made) == {"b"}
    assert not made.objects["2"].ready


def test_heartbeats_are_no_news() -> None:
    made = watching(pod("a", "1", version="5"))
    assert made.watch_bytes(line("MODIFIED", pod("a", "1", version="6")), 1.0) == []


def test_objects_are_told_apart_by_uid_not_by_name() -> None:
    made = watching(pod("a", "old"))
    changes = made.watch_bytes(line("ADDED", pod("a", "new")), 1.0)
    assert [(type(each), each.object.uid) for each in changes if not isinstance(each, Replaced)] == [
        (Deleted, "old"),
        (Upserted, "new"),
    ]
    assert made.watch_bytes(line("DELETED", pod("a", "old")), 1.0) == []
    assert set(made.objects) == {"new"}


def test_a_break_resumes_from_the_version_of_the_last_event_or_bookmark() -> None:
    made = watching()
    made.watch_bytes(line("ADDED", pod("b", "2", version="opaque/1")), 1.0)
    made.failed(Fault("connection reset"), 2.0)
    action, now = next_request(made, 2.0)
    assert isinstance(action, Watch)
    assert action.params["resourceVersion"] == "opaque/1"
    made.watch_opened(now)
    made.watch_bytes(line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "0x77"}}), now)
    made.closed(now + 300.0)
    action, _ = next_request(made, now + 300.0)
    assert isinstance(action, Watch)
    assert action.params["resourceVersion"] == "0x77"


def test_a_clean_close_after_a_while_reopens_at_once() -> None:
    made = watching(at=0.0)
    made.closed(400.0)
    assert isinstance(made.next_action(400.0), Watch)
    assert made.failures == 0


def test_quick_clean_closes_are_failures_that_wait_longer_each_time() -> None:
    made, now, waits = watching(), 0.0, []
    for _ in range(8):
        made.closed(now)
        action = made.next_action(now)
        assert isinstance(action, Wait)
        waits.append(action.until_seconds - now)
        action, now = next_request(made, now)
        while isinstance(action, List):
            made.list_page(page(), now)
            action, now = next_request(made, now)
        made.watch_opened(now)
    assert waits == pytest.approx([0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0])


def test_failures_are_forgiven_only_by_a_watch_that_lived_ten_seconds() -> None:
    made = watching()
    made.failed(Fault("reset"), 0.0)
    _, now = next_request(made, 0.0)
    made.watch_opened(now)
    made.failed(Fault("reset"), now + 9.9)
    assert made.failures == 2
    _, now = next_request(made, now + 9.9)
    made.watch_opened(now)
    made.failed(Fault("reset"), now + 10.1)
    assert made.failures == 1


def test_third_failure_in_a_row_lists_anew() -> None:
    made, now = watching(), 0.0
    kinds = []
    for _ in range(3):
        made.failed(Fault("refused"), now)
        action, now = next_request(made, now)
        kinds.append(type(action))
    assert kinds == [Watch, Watch, List]


def test_410_as_status_lists_anew_and_keeps_the_set_until_then() -> None:
    made = listed(pod("a", "1"))
    made.next_action(0.0)
    made.failed(Fault("too old", 410), 0.0)
    assert names(made) == {"a"}
    action, now = next_request(made, 0.0)
    assert isinstance(action, List)
    assert "resourceVersion" not in action.params
    (change,) = made.list_page(page(pod("b", "2")), now)
    assert isinstance(change, Replaced)
    assert names(made) == {"b"}


@pytest.mark.parametrize(
    "event",
    [
        status(410, "Expired", "too old resource version: 213 (214)"),
        status(410, "Gone"),
        status(0, "Expired"),
        status(500, "InternalError"),
    ],
)
def test_error_event_ends_the_stream_and_lists_anew(event: bytes) -> None:
    made = watching(pod("a", "1"))
    assert made.watch_bytes(event + line("ADDED", pod("z", "9")), 5.0) == []
    assert not made.busy
    action, _ = next_request(made, 5.0)
    assert isinstance(action, List)
    assert names(made) == {"a"}


def test_410_after_410_does_not_loop_without_a_wait() -> None:
    made, now, requests = listed(), 0.0, 0
    while now < 60.0:
        action, now = next_request(made, now)
        requests += 1
        if isinstance(action, List):
            made.list_page(page(), now)
        else:
            made.watch_opened(now)
            made.watch_bytes(status(410, "Expired"), now)
    assert requests < 40  # a list and a watch, then a wait


def test_continue_token_that_expired_is_followed_by_a_list_in_one_piece() -> None:
    made = machine()
    made.next_action(0.0)
    made.list_page(page(pod("a", "1"), more="token"), 0.0)
    made.next_action(0.0)
    made.failed(Fault("the provided continue parameter is too old", 410), 0.0)
    action, now = next_request(made, 0.0)
    assert isinstance(action, List)
    assert action.params == {"labelSelector": "app=x"}
    made.list_page(page(pod("b", "2")), now)
    assert names(made) == {"b"}


def test_401_is_tried_again_at_once_with_credentials_read_anew() -> None:
    made = machine()
    made.next_action(0.0)
    made.failed(Fault("Unauthorized", 401), 0.0)
    action = made.next_action(0.0)
    assert isinstance(action, List)
    assert action.fresh_credentials
    made.failed(Fault("Unauthorized", 401), 0.0)
    assert isinstance(made.next_action(0.0), Wait)
    action, now = next_request(made, 0.0)
    assert isinstance(action, List)
    assert action.fresh_credentials
    made.list_page(page(), now)
    action, _ = next_request(made, now)
    assert not action.fresh_credentials


@pytest.mark.parametrize("code", [403, 404])
def test_a_denial_right_after_an_outage_is_the_first_one(code: int) -> None:
    """An API server that just started knows no roles yet: seen for a second after a real restart."""
    made, now = watching(), 0.0
    for _ in range(12):
        made.failed(Fault("connection refused"), now)
        action = made.next_action(now)
        assert isinstance(action, Wait)
        now = action.until_seconds
        assert isinstance(made.next_action(now), Watch | List)
    for bound in (2.0, 4.0, 8.0):
        made.failed(Fault("forbidden", code), now)
        action = made.next_action(now)
        assert isinstance(action, Wait)
        assert action.until_seconds - now == pytest.approx(0.75 * bound)
        now = action.until_seconds
        assert isinstance(made.next_action(now), List)


@pytest.mark.parametrize("code", [403, 404])
def test_denied_is_asked_again_slowly_and_changes_nothing(code: int) -> None:
    made, now, waits = watching(pod("a", "1")), 0.0, []
    for _ in range(7):
        made.failed(Fault("no", code), now)
        action = made.next_action(now)
        assert isinstance(action, Wait)
        waits.append(action.until_seconds - now)
        _, now = next_request(made, now)
    assert waits == pytest.approx([1.5, 3.0, 6.0, 12.0, 22.5, 22.5, 22.5])
    assert names(made) == {"a"}
    assert made.health is (Health.FORBIDDEN if code == 403 else Health.MISSING)


@pytest.mark.parametrize("code", [429, 503])
def test_retry_after_is_kept_to(code: int) -> None:
    made = watching(pod("a", "1"))
    made.failed(Fault("busy", code, 7.0), 0.0)
    action = made.next_action(0.0)
    assert isinstance(action, Wait)
    assert 7.0 <= action.until_seconds <= 7.5
    action, _ = next_request(made, 0.0)
    assert isinstance(action, Watch)


def test_retry_after_of_a_day_is_not() -> None:
    made = watching()
    made.failed(Fault("busy", 503, 86_400.0), 0.0)
    action = made.next_action(0.0)
    assert isinstance(action, Wait)
    assert action.until_seconds <= 61.0


def test_a_line_cut_by_the_end_of_the_stream_is_a_failure_and_not_an_event() -> None:
    made = watching()
    whole = line("ADDED", pod("b", "2", version="20"))
    made.watch_bytes(whole[:40], 100.0)
    made.closed(100.0)
    assert made.failures == 1
    action, _ = next_request(made, 100.0)
    assert isinstance(action, Watch)
    assert action.params["resourceVersion"] == "10"


def test_html_in_the_stream_is_a_failure() -> None:
    made = watching(pod("a", "1"))
    assert made.watch_bytes(b"<html>\n<body>503 Service Unavailable</body>\n", 1.0) == []
    assert not made.busy
    assert names(made) == {"a"}
    assert "does not parse" in made.detail


def test_a_line_without_end_is_bounded() -> None:
    made = watching(line_bytes_max=1000)
    made.watch_bytes(b"x" * 600, 1.0)
    assert made.busy
    made.watch_bytes(b"x" * 600, 1.0)
    assert not made.busy


@pytest.mark.parametrize("body", [b"", b"<html></html>", b"[]", b"{}", b'{"metadata":{}}', page(version="")])
def test_a_list_that_is_none_changes_nothing(body: bytes) -> None:
    made = watching(pod("a", "1"))
    made.failed(Fault("gone", 410), 0.0)
    _, now = next_request(made, 0.0)
    assert made.list_page(body, now) == []
    assert names(made) == {"a"}
    assert made.failures == 2


def test_pages_without_end_are_bounded() -> None:
    made, now, pages = machine(pages_max=3), 0.0, 0
    while made.failures == 0:
        next_request(made, now)
        made.list_page(page(pod(f"p{pages}", f"u{pages}"), more=f"token{pages}"), now)
        pages += 1
    assert pages == 4
    assert not made.synced


def test_a_page_too_large_is_asked_for_in_smaller_ones() -> None:
    made = machine()
    made.next_action(0.0)
    made.page_too_large(0.0)
    action, now = next_request(made, 0.0)
    assert isinstance(action, List)
    assert action.params["limit"] == "125"
    made.list_page(page(), now)
    assert made.synced


def test_an_old_list_is_taken_anew_when_its_watch_ends() -> None:
    made = watching(relist_seconds=1000.0)
    made.closed(1499.0)
    assert isinstance(made.next_action(1499.0), Watch)
    made.watch_opened(1499.0)
    made.closed(1600.0)
    assert isinstance(made.next_action(1600.0), List)


def test_objects_that_do_not_parse_are_skipped_counted_and_named() -> None:
    bad = pod("bad", "3") | {"status": {"conditions": 7}}
    made = watching(pod("a", "1"), bad)
    assert names(made) == {"a"}
    assert made.malformed_total == 1
    assert "status.conditions" in made.malformed["bad"].why


def test_an_object_that_stops_parsing_leaves_and_comes_back_when_mended() -> None:
    made = watching(pod("a", "1"))
    (change,) = made.watch_bytes(line("MODIFIED", pod("a", "1", "6") | {"status": {"conditions": 7}}), 1.0)
    assert isinstance(change, Deleted)
    assert (names(made), set(made.malformed)) == (set(), {"a"})
    (change,) = made.watch_bytes(line("MODIFIED", pod("a", "1", "7")), 1.0)
    assert isinstance(change, Upserted)
    assert (names(made), set(made.malformed)) == ({"a"}, set())


def test_a_malformed_object_that_is_deleted_is_forgotten() -> None:
    bad = pod("bad", "3") | {"status": {"conditions": 7}}
    made = watching(bad)
    made.watch_bytes(line("DELETED", bad), 1.0)
    assert made.malformed == {}


def test_unknown_event_types_are_passed_over() -> None:
    made = watching(pod("a", "1"))
    assert made.watch_bytes(line("SYNC", pod("b", "2")), 1.0) == []
    assert made.busy


def test_contact_is_what_came_not_what_was_asked() -> None:
    made = machine()
    made.next_action(1.0)
    assert made.last_contact_seconds is None
    made.failed(Fault("refused"), 2.0)
    assert made.last_contact_seconds is None
    _, now = next_request(made, 2.0)
    made.list_page(page(), now)
    assert made.last_contact_seconds == now
