"""What headers, cookies and paths say about where a request goes; a token is kept as a digest only."""

import pytest

from picker.api.hints import NO_HINTS, InvalidHint, digest, held_id, hint_rules
from picker.config import Config, ConfigError, load


def rules(text):
    made = hint_rules(load(text))
    assert made is not None
    return made


def test_by_default_no_header_is_read():
    assert hint_rules(Config()) is None


def test_header_names_are_read_in_lower_case_whatever_configuration_writes():
    made = rules("endpoint_labels: {header: X-Labels}\nsession_affinity: {header: X-Session-ID, cookie: Sid}")
    assert made.headers == {"x-labels", "x-session-id", "cookie"}


@pytest.mark.parametrize("name", ["x labels", "", "x-é", "x:y", "x\ny", "x" * 129])
def test_a_name_that_no_header_can_have_is_an_error(name):
    with pytest.raises(ConfigError, match="header"):
        load(f"session_affinity: {{header: {name!r}}}".replace("\\n", "\\\\n"))


@pytest.mark.parametrize(
    ("cookie", "value"),
    [
        ("sid=abc", "abc"),
        ("a=1; sid=abc; b=2", "abc"),
        ("a=1;sid=abc", "abc"),
        ("xsid=no; sid=a=b=c", "a=b=c"),
        ("sid=", None),
        ("sid", None),
        ("SID=abc", None),
        ("", None),
        (";;;", None),
    ],
)
def test_a_cookie_among_others(cookie, value):
    session = rules("session_affinity: {cookie: sid}").read({"cookie": cookie}).session
    assert session == (None if value is None else digest("cookie", value))


def test_the_header_goes_before_the_cookie():
    made = rules("session_affinity: {header: x-session, cookie: sid}")
    assert made.read({"x-session": "h", "cookie": "sid=c"}).session == digest("header", "h")
    assert made.read({"x-session": "", "cookie": "sid=c"}).session == digest("cookie", "c")
    assert made.read({}) == NO_HINTS


def test_a_session_is_kept_as_sixteen_bytes_that_do_not_show_it():
    secret = "secret-" * 5000
    session = rules("session_affinity: {header: x-session}").read({"x-session": secret}).session
    assert session is not None and len(session) == 16 and b"secret" not in session


def test_labels_that_cannot_be_read_name_the_header_and_not_the_value():
    made = rules("endpoint_labels: {header: x-labels}")
    with pytest.raises(InvalidHint) as refused:
        made.read({"x-labels": "hush hush"})
    assert "x-labels" in str(refused.value) and "label=value" in str(refused.value)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/responses/resp_1", "resp_1"),
        ("/v1/responses/resp_1/cancel", "resp_1"),
        ("/v1/responses/resp_1?stream=true", "resp_1"),
        ("/openai/v1/responses/resp_1/input_items", "resp_1"),
        ("/v1/conversations/conv_1/items/msg_2", "conv_1"),
        ("/v1/uploads/upload_1/parts", "upload_1"),
        ("/v1/videos/video_1/content", "video_1"),
        ("/v1/responses", None),
        ("/v1/responses/", None),
        ("/v1/conversations", None),
        ("/v1/models/responses", None),
        ("/v1/x?y=/responses/resp_1", None),
        ("", None),
    ],
)
def test_a_path_may_name_what_its_server_stores(path, name):
    assert held_id(path) == name
