"""Text that engines leave out before they hash, requests for which they do not look up, and answers that hide work."""

import json

import pytest

from picker.api import find_path, read_body
from picker.api.model_name import in_beginning, in_form, is_form, is_json

LINE = "x-anthropic-billing-header: cc_version=2.1.197.%s; cc_entrypoint=cli; cch=%s;"
SYSTEM = "You are a coding agent. " * 60


def with_line(form: str, number: int) -> dict[str, object]:
    """A body whose billing line is another in each request, in one of the forms that clients give it."""
    line = LINE % (f"{number:03}", f"{number:05}")
    user = {"role": "user", "content": "hi"}
    blocks = [{"type": "text", "text": line}, {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    forms: dict[str, dict[str, object]] = {
        "a block": {"system": blocks, "messages": [user]},
        "a block without a colon": {
            "system": [{"type": "text", "text": line.replace("header:", "header")}, blocks[1]],
            "messages": [user],
        },
        "a bare string among blocks": {"system": [line, blocks[1]], "messages": [user]},
        "the first line of a string": {"system": f"{line}\n{SYSTEM}", "messages": [user]},
        "an inline message": {"messages": [{"role": "system", "content": blocks}, user]},
        "an inline string": {"messages": [{"role": "system", "content": f"{line}\n{SYSTEM}"}, user]},
        "alone": {"system": line, "messages": [{"role": "user", "content": SYSTEM}]},
    }
    return forms[form]


@pytest.mark.parametrize(
    "form",
    [
        *("a block", "a block without a colon", "a bare string among blocks"),
        *("the first line of a string", "an inline message", "an inline string", "alone"),
    ],
)
@pytest.mark.parametrize("pad", [0, 20_000])
def test_claude_codes_billing_line_is_left_out(read, form, pad):
    first, second = (read("/v1/messages", **with_line(form, n), metadata={"p": "x" * pad}).prompt for n in (1, 2))
    assert first == second and SYSTEM.encode() in first and b"billing" not in first


def test_a_system_message_stays_where_it_stands(read):
    """As in vLLM (PR 44602): a rule that comes in the middle leaves the prefix of the turns before it as it was."""
    turns = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]
    rule, last = {"role": "system", "content": "new rule"}, {"role": "user", "content": "C"}
    before = read("/v1/messages", system="S", messages=turns).prompt
    assert read("/v1/messages", system="S", messages=[*turns, rule, last]).prompt.startswith(before)


def test_what_only_looks_like_it_is_text(read):
    for system in (
        "about x-anthropic-billing-header: lines",
        "x-anthropic-billing: 1",
        "X-Anthropic-Billing-Header: x",
    ):
        assert system.encode() in read("/v1/messages", system=system, messages=[]).prompt
    in_chat = [{"role": "system", "content": LINE % ("1", "2")}]
    assert b"billing" in read("/v1/chat/completions", messages=in_chat).prompt, "vLLM drops it for Anthropic's API only"


@pytest.mark.parametrize(
    ("path", "fields", "reads"),
    [
        ("/v1/completions", {"echo": True, "logprobs": 1}, False),
        ("/v1/completions", {"echo": True, "logprobs": 0}, False),
        ("/v1/completions", {"echo": True}, True),
        ("/v1/completions", {"logprobs": 5}, True),
        ("/v1/completions", {"prompt_logprobs": 0}, False),
        ("/v1/completions", {"echo": False, "logprobs": 1, "prompt_logprobs": None}, True),
        ("/v1/completions", {"echo": 0, "logprobs": 1}, True),
        ("/v1/completions", {"echo": "false", "logprobs": 1}, True),
        ("/v1/completions", {"echo": "true", "logprobs": 1}, False),
        ("/v1/chat/completions", {"prompt_logprobs": 1}, False),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 5}, True),
        ("/v1/chat/completions", {"echo": True}, False),
        ("/v1/chat/completions", {"echo": True, "logprobs": False}, False),
        ("/v1/chat/completions", {"echo": True, "top_logprobs": 0}, False),
        ("/v1/chat/completions", {"echo": True, "logprobs": True, "top_logprobs": None}, True),
        ("/v1/chat/completions", {"echo": 0, "logprobs": True}, True),
        ("/v1/chat/completions/batch", {"echo": True}, False),
        ("/generate", {"parameters": {"decoder_input_details": True}}, False),
        ("/generate", {"sampling_params": {"prompt_logprobs": 1}}, False),
        ("/generate", {"return_logprob": True, "logprob_start_len": 0}, False),
        ("/generate", {"return_logprob": True}, True),
        ("/generate", {"return_logprob": True, "logprob_start_len": -1}, True),
        ("/generate", {"return_logprob": 0, "logprob_start_len": 0}, True),
        ("/generate", {"return_logprob": "true", "logprob_start_len": 0}, False),
        ("/generate", {"return_logprob": [True, False], "logprob_start_len": [0, -1]}, False),
        ("/generate", {"return_logprob": [True, True], "logprob_start_len": [-1, 0]}, True),
        ("/generate", {"return_logprob": [True, True], "logprob_start_len": 0}, False),
        ("/generate", {"return_logprob": [], "logprob_start_len": []}, True),
        ("/vertex_generate", {"parameters": {"return_logprob": True, "logprob_start_len": 0}}, False),
        ("/inference/v1/generate", {"sampling_params": {"skip_reading_prefix_cache": True}}, False),
        ("/inference/v1/generate", {"sampling_params": {"skip_reading_prefix_cache": None}}, True),
        (
            "/inference/v1/generate",
            {"sampling_params": {"skip_reading_prefix_cache": False, "prompt_logprobs": 1}},
            True,
        ),
        ("/inference/v1/generate", {"sampling_params": {"prompt_logprob_token_ids": [1]}}, False),
        ("/completion", {"cache_prompt": False}, False),
        ("/completion", {"cache_prompt": True}, True),
        ("/completion", {"cache_prompt": None}, True),
        ("/completion", {"cache_prompt": 0}, True),
        ("/completion", {"cache_prompt": "false"}, True),
        ("/infill", {"cache_prompt": False}, False),
        ("/v1/completions", {"cache_prompt": False}, False),
        ("/v1/chat/completions", {"cache_prompt": False}, False),
        ("/v1/responses", {"cache_prompt": False}, False),
        ("/v1/messages", {"cache_prompt": False}, True),
    ],
)
def test_requests_for_which_engines_do_not_read_their_cache(read, path, fields, reads):
    """Who asks, by vLLM's `to_sampling_params` and llama.cpp's `json_value`, which takes no other type for a boolean.

    llama.cpp makes a new body of Anthropic's, without `cache_prompt` (server-chat.cpp, `convert_anthropic_to_oai`).
    """
    prompt = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    assert read(path, **prompt, **fields).reads_cache is reads


@pytest.mark.parametrize(
    ("path", "fields", "choices", "sequences"),
    [
        ("/v1/chat/completions", {"messages": [], "n": 32}, 32, 32),
        ("/v1/completions", {"prompt": ["a", "b", "c"], "n": 4}, 4, 12),
        ("/v1/completions", {"prompt": [[1], [2]], "best_of": 3}, 1, 2),
        ("/v1/completions", {"prompt": "a", "n": 2, "best_of": 8}, 2, 2),
        ("/v1/completions", {"prompt": "a", "n": 10**9}, 1024, 1024),
        ("/v1/completions", {"prompt": "a", "n": "x"}, 1, 1),
        ("/generate", {"text": ["a", "b"], "sampling_params": {"n": 3}}, 3, 6),
        ("/vertex_generate", {"instances": [{"text": "a"}] * 5}, 1, 5),
        ("/v1/chat/completions/batch", {"messages": [[], [], []]}, 1, 3),
    ],
)
def test_what_one_answer_hides_is_counted(read, path, fields, choices, sequences):
    request = read(path, **fields)
    assert (request.choices, request.sequences) == (choices, sequences)


@pytest.mark.parametrize(
    ("path", "fields", "sized"),
    [
        ("/v1/chat/completions", {"messages": []}, True),
        ("/v1/chat/completions", {"messages": [], "truncate_prompt_tokens": 5}, False),
        ("/v1/responses", {"input": "x"}, True),
        ("/v1/responses", {"input": "x", "previous_response_id": "resp_1"}, False),
        ("/v1/responses", {"input": "x", "conversation": {"id": "conv_1"}}, False),
        ("/v1/responses", {"input": "x", "truncation": "auto"}, False),
        ("/v1/responses", {"input": "x", "truncation": "disabled"}, True),
        ("/vertex_generate", {"instances": [{"text": "a"}, {"text": "b"}]}, False),
        ("/generate", {"inputs": "a", "parameters": {"max_new_tokens": 5}}, True),
        ("/generate", {"inputs": "a", "parameters": {"truncate": 5}}, False),
        ("/api/generate", {"prompt": "a", "context": [1, 2]}, False),
        ("/api/generate", {"prompt": "a", "context": []}, True),
    ],
)
def test_bytes_and_tokens_that_count_other_things_are_no_sample(read, path, fields, sized):
    assert read(path, **fields).sized is sized


@pytest.mark.parametrize(
    ("path", "fields", "reports"),
    [
        ("/v1/chat/completions", {"messages": [], "stream_options": {"include_usage": True}}, True),
        ("/v1/chat/completions", {"messages": [], "stream_options": {"include_usage": "true"}}, True),
        ("/v1/chat/completions", {"messages": [], "stream_options": {"include_usage": False}}, False),
        ("/v1/chat/completions", {"messages": []}, False),
        ("/v1/completions", {"prompt": "x", "stream_options": None}, False),
        ("/v1/messages", {"messages": []}, True),
        ("/v1/responses", {"input": "x"}, True),
    ],
)
def test_which_streams_tell_their_counts(read, path, fields, reports):
    assert read(path, **fields).reports_usage is reports


def form(*fields: tuple[str, bytes], file: bytes = b"", ahead: bool = True) -> bytes:
    """A form as httpx and curl write it (RFC 7578)."""
    parts = [b'--B\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (n.encode(), v) for n, v in fields]
    upload = b'--B\r\nContent-Disposition: form-data; name="file"; filename="model"\r\nContent-Type: audio/wav\r\n\r\n'
    return b"".join([*parts, upload + file + b"\r\n"] if ahead else [upload + file + b"\r\n", *parts]) + b"--B--\r\n"


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("size", [0, 500_000])
def test_the_model_of_a_form_is_found_before_and_behind_its_file(ahead, size):
    body = form(("language", b"en"), ("model", b"whisper-1"), file=b"\0" * size, ahead=ahead)
    assert in_form("multipart/form-data; boundary=B", body) == "whisper-1"
    assert in_form("multipart/form-data; boundary=B", memoryview(body)) == "whisper-1"


def test_a_form_without_a_model_names_none():
    assert in_form("multipart/form-data; boundary=B", form(("x", b"model"), file=b'name="model"')) is None
    assert in_form("multipart/form-data", b"") is None
    assert in_form("application/x-www-form-urlencoded", b"x=1&model=a%2Fb") == "a/b"
    assert in_form("application/x-www-form-urlencoded", b"x" * 100_000) is None
    assert in_form("text/plain", b"model=x") is None


FORM = "multipart/form-data; boundary=B"
MODEL = b'--B\r\nContent-Disposition: form-data; name="model"\r\n%b\r\nwhisper-1\r\n'
FILE = b'--B\r\nContent-Disposition: form-data; name="image"; filename="a"\r\nContent-Type: image/png\r\n\r\n%b\r\n'


@pytest.mark.parametrize("part_headers", [b"", b"Content-Type: text/plain\r\nContent-Length: 9\r\n"])
@pytest.mark.parametrize("noise", [b"\0", b'name="model"', b'\r\n--\r\nname="model"\r\n\r\nx\r\n--'])
def test_the_model_of_a_form_is_found_between_two_files(part_headers, noise):
    file = FILE % (noise * 20 + b"\xff" * 300_000)
    assert in_form(FORM, file + MODEL % part_headers + file + b"--B--\r\n") == "whisper-1"


def test_of_a_file_that_is_full_of_names_no_end_is_looked_for():
    names = FILE % (b'\r\ncontent-disposition: ; name="model"\r\n' * 100_000)
    assert in_form(FORM, names + MODEL % b"" + names) is None


@pytest.mark.parametrize("field", [b"x: y\r\n", b"content-disposition: ;name=model\r\n", b";", b"\r\n", b"a"])
def test_headers_without_end_are_followed_for_a_few_lines(field):
    """Eight of them, and no model: an upload of nothing else must not be looked at again from each of its lines."""
    assert in_form(FORM, b'--B\r\nContent-Disposition: form-data; name="model"\r\n' + field * 9 + b"\r\nm") is None
    assert in_form(FORM, b'\ncontent-disposition: ;name="model"\r\n' + field * 200_000) is None


def test_json_that_curl_calls_a_form_is_none():
    assert not is_form("application/x-www-form-urlencoded", b' \n{"model":"m"}')
    assert is_form("application/x-www-form-urlencoded", b"model=m") and is_form(FORM, b"{")
    assert not is_form("application/json", b"model=m") and not is_form("", b"")


@pytest.mark.parametrize(
    ("content_type", "says_so"),
    [
        ("application/json", True),
        ("application/json; charset=utf-8", True),
        ("application/vnd.api+json;version=1", True),
        ("text/json", True),
        ("application/jsonlines", False),
        ("application/x-npy", False),
        ("text/csv; of=application/json", False),
        ("", False),
    ],
)
def test_which_content_types_are_json(content_type, says_so):
    assert is_json(content_type) is says_so


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model":"reranker","documents":["', "reranker"),
        (b' {"query" : "say \\"model\\": {", "top_n": 5, "x":null ,\n"model":\t"a/b" , "documents"', "a/b"),
        ('{"model":"m\u00e9","x'.encode(), "m\u00e9"),
        (b'{"documents":[{"model":"no"}],"model":"m"}', None),
        (b'{"nested":{"model":"no"},"x":1', None),
        (b'{"query":"unfinished \\"model\\":\\"no\\"', None),
        (b'{"model":5,"model":"m"', None),
        (b'["model","m"]', None),
        (b'{"model":"\xff"}', None),
        (b"", None),
        (b'{"a":"' + b"x" * 70_000 + b'","model":"m"}', None),
        (b'{"a":1,' * 9_000, None),
        (b'{"' * 30_000, None),
    ],
)
def test_the_model_of_json_that_has_only_begun(body, model):
    assert in_beginning(body) == model


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/rerank", {"documents": [{"text": "d"}] * 16_500}),
        ("/v1/embeddings", {"input": [[1, 2]] * 16_500}),
        ("/v1/chat/completions", {"messages": [{"role": "u", "content": [{"type": "text", "text": "x"}]}] * 6_000}),
        ("/v1/responses", {"input": "x", "tools": [{"a": [[1]]}] * 6_000}),
        ("/v1/responses", {"input": "x", "tools": [{"a": [[1]]}] * 6_000 + [float("nan")]}),
        ("/v1/responses", {"input": "x" * 20_000, "tools": [{}] * 300_000}),
    ],
)
def test_of_a_body_of_too_many_parts_its_names_are_known(path, fields):
    named = {"model": "m", "stream": True, "previous_response_id": "resp_1", "conversation": {"id": "conv_1"}}
    body = json.dumps(fields | named).encode()
    request = read_body(find_path(path).api, body)
    assert (request.model, request.stream) == ("m", True)
    assert (request.previous_response_id, request.conversation_id) == ("resp_1", "conv_1")
    assert (request.prompt, request.sized) == (b"", False)
    if find_path(path).api.understood:
        assert (request.api, request.prompt_bytes) == (path.rpartition("/v1/")[2].replace("/", "_"), len(body))
