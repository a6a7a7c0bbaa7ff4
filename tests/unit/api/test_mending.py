"""What Python's reader takes and msgspec does not: read as Python reads it, at a bounded cost."""

import json

import pytest

from picker.api import find_path, mending, read_body, reading
from picker.api.mending import mend
from picker.api.request import InvalidBody

CHAT = "/v1/chat/completions"
MIB = 1024 * 1024


def conversation(messages: int, text: str = "a tool's result, of some length " * 12) -> dict[str, object]:
    turns = [{"role": "tool", "content": f"{text} {number}"} for number in range(messages)]
    return {"model": "m", "previous_response_id": "resp_1", "messages": turns, "tools": []}


ODD: dict[str, dict[str, object]] = {
    "NaN": {"tools": [{"default": float("nan")}]},
    "infinities": {"tools": [{"maximum": float("inf"), "minimum": -float("inf"), "text": "NaN, -Infinity"}]},
    "NaN behind": {"zz": [1, float("nan")]},
    "halves": {"messages": [{"role": "tool", "content": f"cut \ud83d {number}"} for number in range(300)]},
    "NaN and halves": {"tools": [float("nan"), "\ude00"], "zz": "\ud83d"},
}
"""Python writes all of it."""


@pytest.mark.parametrize("messages", [10, 400, 8_000])
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages", "/v1/rerank"])
def test_nan_and_halves_cost_nothing_else_of_a_body_of_any_length(path, name, messages):
    fields = conversation(messages) | ODD[name]
    if path == "/v1/responses":
        fields["input"] = fields.pop("messages")
    request = read_body(find_path(path).api, json.dumps(fields | {"user": "\u00e9\U0001f600"}).encode())
    assert request.model == "m"
    if path != "/v1/rerank":
        assert len(request.prompt) > 300 * (1 if name == "halves" else messages) // 40
    if path == "/v1/responses":
        assert request.previous_response_id == "resp_1"


def test_the_rest_of_the_prompt_is_as_it_was(read):
    whole = json.dumps(conversation(1_000)).encode()
    cut = whole.replace(b"result", rb"\ud83d12", 1).replace(b'"tools": []', b'"tools": NaN')
    first, second = (read(CHAT, body).prompt for body in (whole, cut))
    assert first.startswith(b"[]") and second == first.replace(b"result", rb"\ufffd12", 1)


@pytest.mark.parametrize(
    "text",
    [
        r'{"a": NaN}',
        r'{"a": [Infinity, -Infinity, NaN,1]}',
        r'{"NaN": "NaN", "b": "a \" NaN", "c": NaN, "d": "\\", "e": -Infinity, "f": "\\\" NaN"}',
        "NaN",
        r'["\ud83d", "\ud83d\ude00", "\ude00\ud83d", "\uD83D\uDE00\uDE00", "\ud83d\ud83d\ude00"]',
        r'["\\ud83d", "\\\ud83d", "\\\\ud83d", "\\\\\ud83d\ude00", "\ud83d\\ude00", "\\\\\ude00"]',
        r'["\ud83dx", "\ud83d\n", "\ud83d\u0041", "\ud7ff\ue000", "\udbff\udc00", "\udfff", "\uDbfF"]',
        r'["ends with one \ud83d"]',
        '["\\ud83d"]',
    ],
)
def test_python_reads_the_mended_body_as_it_reads_the_body(text):
    mended = mend(text.encode())
    assert mended is not None and len(mended) == len(text)
    assert json.loads(mended) == plain(json.loads(text))


def plain(value):
    """What a mended body should hold, of what the body holds by Python's reader."""
    if isinstance(value, str):
        return "".join("\ufffd" if "\ud800" <= each <= "\udfff" else each for each in value)
    if isinstance(value, float) and value - value != 0:  # NaN and infinities
        return []
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    return value


@pytest.mark.parametrize(
    "body", [b"", b"\\", b"\\u", b"\\ud83", b"nan", b'{"a":"\\ud83d\\ude00 NaN"}', b"-", b"Na", b'"']
)
def test_what_needs_no_mending_is_returned_itself(body):
    assert mend(body) is body


@pytest.mark.parametrize(
    "body",
    [
        b'"\\ud83d"' + b" " * mending.MEND_BYTES_MAX,
        b'["' + rb"\ud83d\ude00" * (mending.SURROGATES_MAX // 2) + rb'\ud83d"]',
        b"[NaN" + b',"x"' * (mending.QUOTES_MAX // 2) + b',""]',
        b'["' + b"NaN " * mending.NUMBERS_MAX + b'", NaN]',
        b'["' + b"\\" * 2 * mending.STEPS_MAX + rb'\ud83d"]',
        b'["' + (b"\\" * 20 + rb"\ud83d") * (mending.STEPS_MAX // 20) + b'"]',
    ],
    ids=["long", "pairs", "quotes", "texts", "one run", "runs"],
)
def test_what_would_take_long_is_left_and_routes_by_load(read, body):
    json.loads(body)
    assert mend(body) is None
    fields = b'{"model":"m","messages":[{"role":"u","content":"x"}],"zz":' + body + b"}"
    request = read(CHAT, fields)
    assert (request.prompt, request.prompt_bytes, request.sized) == (b"", len(fields), False)


@pytest.mark.parametrize("place", [mending._PART_BYTES + by for by in range(-9, 3)])
def test_nothing_hides_between_two_parts_of_a_pass(place):
    for odd in (rb'"\ud83d"', b"NaN", b"-Infinity"):
        body = b"[" + b" " * place + odd + b"]"
        mended = mend(body)
        assert mended is not None and json.loads(mended) == plain(json.loads(body))


SOUND = {
    "plain": b'{"role":"u","content":"' + b"word " * 20 + b'"}',
    "escapes": b'{"role":"u","content":"' + rb"caf\u00e9 \ud83d\ude00 " * 4 + b'"}',
    "halves": b'{"role":"u","content":"' + rb"cut \ud83d " * 5 + b'"}',
    "NaN": b'{"role":"u","content":"' + b"word " * 20 + b'","score":NaN}',
    "all": rb'{"role":"u","content":"cut \ud83d\\\ude00 \"NaN\" ' + b"word " * 20 + b'","score":-Infinity}',
}


@pytest.mark.parametrize("count", [5, 1_000, 4_000, 12_000])
@pytest.mark.parametrize("name", SOUND)
def test_a_body_is_refused_where_python_refuses_it_and_only_there(read, name, count):
    body = b'{"model":"m","messages":[' + b",".join([SOUND[name]] * count) + b"]}"
    json.loads(body)
    assert read(CHAT, body).model == "m"
    bent = {
        "cut": body[:-1],
        "cut in a text": body[: body.rindex(b"word" if b"word" in body else rb"\u")],
        "cut in an escape": body + rb'"\ud8',
        "cut behind an escape": body[:-1] + rb',"a":"\u00e9',
        "cut behind half an emoji": body[:-1] + rb',"a":"\ud83d',
        "comma": body[:-1] + b",}",
        "more": body + b"x",
        "quotes": body.replace(b'"role"', b"'role'", 1),
        "control": body.replace(b'"u"', b'"\n"', 1),
        "True": body[:-1] + b',"a":True}',
        "escape": body[:-1] + rb',"a":"\x"}',
        "digits": body[:-1] + rb',"a":"\ud83x"}',
        "-NaN": body[:-1] + b',"a":-NaN}',
        "nan": body[:-1] + b',"a":nan}',
    }
    for what, wrong in bent.items():
        with pytest.raises(json.JSONDecodeError):
            json.loads(wrong)
        with pytest.raises(InvalidBody):
            read(CHAT, wrong)
            pytest.fail(what)


def test_the_place_that_a_refusal_names_is_that_of_the_body(read):
    body = b'{"a":NaN,"b":"\\ud83d",\n"c":"' + b"x" * 300_000 + b'",\n"d":tru}'
    with pytest.raises(json.JSONDecodeError) as python:
        json.loads(body)
    with pytest.raises(InvalidBody, match="line 3 "):
        read(CHAT, body)
    assert python.value.lineno == 3


def test_above_the_limit_only_what_is_certain_is_refused(read):
    head = b'{"a":"' + b"x" * (mending.MEND_BYTES_MAX + 1) + b'"'
    for rest in (rb',"b":"\ud83d"}', rb',"b":"\ud83d\n"} ', b',"b":NaN}', b',"b":NaN', rb',"b":"\ud83d\n12345678"}'):
        assert read(CHAT, head + rest).model is None
    for rest in (b"", b",}", rb',"b":"\ud83d', rb',"b":"\u00e9"', rb',"b":"\u00e9 and more', b',"b":nan}'):
        with pytest.raises(InvalidBody):
            read(CHAT, head + rest)


@pytest.mark.parametrize(
    "coding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "utf-8-sig"]
)
@pytest.mark.parametrize("odd", [False, True])
def test_megabytes_of_unicode_in_another_coding_are_read(read, coding, odd):
    width = 4 if "32" in coding else 2
    fields = conversation(reading.TRANSCODE_BYTES_MAX // width // 450) | ({"tools": [float("nan")]} if odd else {})
    body = json.dumps(fields, ensure_ascii=False).encode(coding)
    assert 3 * MIB < len(body) <= reading.TRANSCODE_BYTES_MAX
    assert json.loads(body)["model"] == "m" == read(CHAT, body).model
    assert len(read(CHAT, body).prompt) > MIB


@pytest.mark.parametrize("coding", ["utf-16", "utf-32-le"])
def test_more_of_another_coding_routes_by_load(read, coding):
    body = json.dumps(conversation(1, "x" * (reading.TRANSCODE_BYTES_MAX // 2))).encode(coding)
    request = read(CHAT, body)
    assert (request.model, request.prompt, request.prompt_bytes) == (None, b"", len(body))


def test_lone_surrogates_of_utf_16_are_read_and_half_a_unit_is_refused(read):
    body = '{"model":"m","messages":[{"role":"u","content":"cut \ud83d"}]}'.encode("utf-16", "surrogatepass")
    assert json.loads(body)["model"] == "m" == read(CHAT, body).model
    with pytest.raises(UnicodeDecodeError):
        json.loads(body + b"\0")
    with pytest.raises(InvalidBody, match=f"not UTF-16 at byte {len(body)}"):
        read(CHAT, body + b"\0")
    long = body.replace("cut".encode("utf-16-le"), ("cut" * 50_000).encode("utf-16-le"))
    assert read(CHAT, long).model is None, "each would take half a microsecond"


@pytest.mark.parametrize("marks", [2, 1_000, 100_000])
def test_one_byte_order_mark_is_one(read, marks):
    body = b"\xef\xbb\xbf" * marks + b'{"messages":[]}'
    assert read(CHAT, body[3 * (marks - 1) :]).api == "chat_completions"
    with pytest.raises(json.JSONDecodeError):
        json.loads(body)
    with pytest.raises(InvalidBody, match=r"char 0\)"):
        read(CHAT, body)
