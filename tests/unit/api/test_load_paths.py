"""Paths that are not read: each has its own label, the set of labels is bounded, and only prompts weigh."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.api import PARSERS, find_api
from picker.api.paths import FAMILIES, OTHER, PATHS, find_path

NAMES = {path.name for path in (*PATHS.values(), *FAMILIES.values())} | {OTHER}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/rerank", "rerank"),
        ("/rerank", "rerank"),
        ("/v2/rerank?x=1", "rerank"),
        ("/v1/score/", "score"),
        ("/pooling", "pooling"),
        ("/classify", "classify"),
        ("/tokenize", "tokenize"),
        ("/v1/audio/transcriptions", "audio_transcriptions"),
        ("/v1/audio/translations", "audio_translations"),
        ("/v1/audio/speech", "audio_speech"),
        ("/v1/images/generations", "images"),
        ("/v1/images/edits", "images"),
        ("/v1/realtime?model=m", "realtime"),
        ("/v1/batches", "batches"),
        ("/v1/batches/batch_1/cancel", "batches"),
        ("/v1/files/file-1/content", "files"),
        ("/v1/models", "models"),
        ("/v1/models/m", "models"),
        ("/v1/responses/resp_1/input_items", "responses"),
        ("/v1/conversations", "conversations"),
        ("/v1/conversations/conv_1/items", "conversations"),
        ("/v1/messages/count_tokens", "count_tokens"),
        ("/v1/chat/completions/render", "render"),
        ("/v1/messages/render", "render"),
        ("/v1/responses/render", "render"),
        ("/v1/chat/completions/derender", "render"),
        ("/metrics", "other"),
        ("/transcriptions", "other"),
        ("/v1/Rerank", "other"),
        ("/?/rerank", "other"),
        ("/", "other"),
        ("", "other"),
        ("*", "other"),
    ],
)
def test_a_path_has_its_name(path, name):
    assert find_api(path) is None
    assert find_path(path).name == name


@pytest.mark.parametrize("path", ["/tokenize", "/v1/files", "/v1/models", "/v1/messages/count_tokens", "/v1/batches"])
def test_what_computes_no_prompt_weighs_nothing(path):
    assert not find_path(path).prefills


@given(st.text(max_size=300) | st.lists(st.sampled_from(["", "v1", "files", "audio", "x"]), max_size=40).map("/".join))
def test_any_path_has_one_of_a_few_names(path):
    assert find_path(path).name in NAMES


def test_no_name_is_shared_with_what_is_read_but_responses():
    """A stored response is asked for under the name of the API that makes it."""
    assert NAMES & {api.name for api in PARSERS.values()} == {"responses"}
