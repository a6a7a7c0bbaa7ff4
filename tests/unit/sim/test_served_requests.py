"""What the simulated server makes of bodies: tokens, ids that follow the conversation, refusals in vLLM's words."""

import json

import pytest

from picker.sim.served_requests import BadRequest, parse

MODELS = ("m", "sql")


def chat(messages, **more):
    return parse(
        True, json.dumps({"model": "m", "messages": messages, "max_tokens": 40, **more}).encode(), MODELS, 16384
    )


def completion(prompt, **more):
    return parse(False, json.dumps({"model": "m", "prompt": prompt, "max_tokens": 40, **more}).encode(), MODELS, 16384)


def common(one, two):
    count = 0
    for a, b in zip(one, two, strict=False):
        if a != b:
            break
        count += 1
    return count


def test_the_next_turn_begins_with_this_ones_prompt_and_answer():
    first = chat([{"role": "system", "content": "s" * 1000}, {"role": "user", "content": "u" * 100}])
    (one,) = first.sequences
    second = chat(
        [
            {"role": "system", "content": "s" * 1000},
            {"role": "user", "content": "u" * 100},
            {"role": "assistant", "content": one.answer},
            {"role": "user", "content": "v" * 100},
        ]
    )
    assert len(one.ids) == (one.prompt_tokens + 40) // 16
    assert common(one.ids, second.sequences[0].ids) == len(one.ids)


def test_model_and_salt_part_chains_and_the_same_words_do_not():
    words = [{"role": "user", "content": "w" * 500}]
    plain = chat(words).sequences[0].ids
    assert common(plain, chat(words).sequences[0].ids) == len(plain)
    assert common(plain, chat(words, cache_salt="x").sequences[0].ids) == 0
    assert common(plain, chat(words, model="sql").sequences[0].ids) == 0
    assert common(chat(words, cache_salt="x").sequences[0].ids, chat(words, cache_salt="y").sequences[0].ids) == 0


def test_every_shape_of_prompt_counts_its_tokens():
    assert [one.prompt_tokens for one in completion("abcdefghi").sequences] == [3]
    assert [one.prompt_tokens for one in completion(["abcd", "abcdabcd"]).sequences] == [1, 2]
    assert [one.prompt_tokens for one in completion([5, 6, 7]).sequences] == [3]
    assert [one.prompt_tokens for one in completion([[5, 6, 7], [8]]).sequences] == [3, 1]
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "x"}}]}
    ]
    assert len(chat(parts).sequences) == 1


def test_without_a_limit_the_answer_stops_by_itself():
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    request = parse(True, body, MODELS, 16384)
    assert (request.finish_reason, request.model) == ("stop", "m")
    assert chat([{"role": "user", "content": "hi"}]).finish_reason == "length"


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        (b'{"model":"m","messages":[', 400, "Bad Request", "JSON decode error"),
        (b'{"model":"nope","messages":[]}', 404, "NotFoundError", "`nope` does not exist. Valid aliases: m, sql."),
        (b'{"model":"m","messages":[]}', 400, "BadRequestError", "must not be empty"),
        (b'{"model":"m","messages":7}', 400, "Bad Request", "validation error"),
        (b'{"messages":[{"role":"user","content":"x"}],"max_tokens":0}', 400, "BadRequestError", "at least 1"),
        (
            b'{"messages":[{"role":"user","content":"x"}],"max_tokens":100000}',
            400,
            "BadRequestError",
            "max_tokens=100000 cannot be greater than max_model_len=16384",
        ),
        (
            b'{"messages":[{"role":"user","content":"%b"}]}' % (b"x" * 70000),
            400,
            "BadRequestError",
            "maximum context length is 16384",
        ),
    ],
)
def test_refusals_have_vllms_status_and_type(body, status, kind, words):
    with pytest.raises(BadRequest) as caught:
        parse(True, body, MODELS, 16384)
    assert (caught.value.status, caught.value.kind) == (status, kind)
    assert words in str(caught.value)


@pytest.mark.parametrize("prompt", ["", [], None, [-1], [2**40], [1, "a"]])
def test_a_prompt_that_is_none_is_refused(prompt):
    with pytest.raises(BadRequest):
        completion(prompt)
