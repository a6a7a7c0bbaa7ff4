"""Which API a method and path name: what it is called, whether it weighs, whether its prompt is read, which model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.api import PARSERS, find_api, find_path
from picker.api.paths import OTHER, TABLE, UNREAD

NAMES = {row.name for row in TABLE} | {OTHER}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chat_completions"),
        ("/chat/completions", "chat_completions"),
        ("/openai/deployments/gpt/chat/completions?api-version=2024-10-21", "chat_completions"),
        ("/v1/chat/completions/", "chat_completions"),
        ("/v1/completions?x=/v1/embeddings", "completions"),
        ("/completions", "completions"),
        ("/a/b/c/v1/responses", "responses"),
        ("/v1/messages?beta=true", "messages"),
        ("/v1/embeddings", "embeddings"),
        ("/v2/models/m/generate_stream", "generate_stream"),
        ("/inference/v1/generate", "generate"),
        ("/api/generate", "ollama"),
        ("/api/chat", "ollama"),
        ("/v1/chat/completions/batch", "chat_completions_batch"),
        ("/", "generate"),
        ("", None),
        ("/v1/models", None),
        ("/v1/responses/resp_1/cancel", None),
        ("/v1/messages/count_tokens", None),
        ("/v1/chat/completionsx", None),
        ("/v1/xcompletions", None),
        ("/v1/Chat/Completions", None),
        ("/v1/chat%2Fcompletions", None),
        ("/rerank", None),
        ("/v1/audio/transcriptions", None),
        ("*", None),
    ],
)
def test_prompts_are_read_where_the_whole_shape_fits(path, name):
    found = find_api(path)
    assert (found.name if found else None) == name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/rerank", "rerank"),
        ("/v2/rerank?x=1", "rerank"),
        ("/v1/score/", "score"),
        ("/pooling", "pooling"),
        ("/classify", "classify"),
        ("/v1/audio/transcriptions", "audio_transcriptions"),
        ("/v1/audio/speech", "audio_speech"),
        ("/v1/images/edits", "images"),
        ("/v2/models/m/infer", "infer"),
        ("/v2/models/m/versions/1/infer", "infer"),
        ("/v1beta/models/m:generateContent", "generate_content"),
        ("/v1beta/models/m:streamGenerateContent?alt=sse", "generate_content"),
        ("/v1/models/m:predict", "predict"),
        ("/v1/models/m:classify", "predict"),
        ("/v1/models/m/versions/1:predict", "predict"),
        ("/v1/models/m/labels/stable:regress", "predict"),
        ("/v1/projects/p/locations/l/endpoints/5:rawPredict", "predict"),
        ("/v1/projects/p/locations/l/endpoints/5:streamGenerateContent", "generate_content"),
        ("/v1beta/models/org/m:streamGenerateContent", "generate_content"),
        ("/v1beta/models/m%3AgenerateContent", "generate_content"),
        ("/v1beta/tunedModels/m:generateContent", "generate_content"),
        ("/v2/models/org/m/infer", "infer"),
        ("/v2/models/org/m/versions/1/infer", "infer"),
        ("/models/org/m", "predict"),
        ("/model/m/converse-stream", "converse"),
        ("/model/m/invoke", "invocations"),
        ("/v1/videos", "videos"),
        ("/v1/whatever", "other"),
        ("/transcriptions", "other"),
        ("/v1/Rerank", "other"),
    ],
)
def test_a_body_that_is_computed_weighs(path, name):
    found = find_path(path)
    assert (found.name, found.prefills, found.api.understood) == (name, True, False)


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("POST", "/tokenize", "tokenize"),
        ("POST", "/v1/tokenize", "tokenize"),
        ("POST", "/v1/messages/count_tokens", "count_tokens"),
        ("POST", "/v1/responses/input_tokens", "count_tokens"),
        ("POST", "/v1/chat/completions/input_tokens", "count_tokens"),
        ("POST", "/v1beta/models/m:countTokens", "count_tokens"),
        ("POST", "/v1/projects/p/locations/l/endpoints/5:countTokens", "count_tokens"),
        ("POST", "/v1beta/models/org/m:countTokens", "count_tokens"),
        ("POST", "/apply-template", "render"),
        ("POST", "/parse_function_call", "render"),
        ("POST", "/separate_reasoning", "render"),
        ("POST", "/decode", "detokenize"),
        ("POST", "/v1/load_lora_adapter", "control"),
        ("POST", "/v2/repository/models/m/load", "control"),
        ("POST", "/api/show", "control"),
        ("POST", "/slots/3?action=save", "control"),
        ("GET", "/v1/videos/video_1/content", "videos"),
        ("POST", "/v1/uploads/upload_1/parts", "uploads"),
        ("POST", "/v1/chat/completions/render", "render"),
        ("POST", "/v1/chat/completions/derender", "render"),
        ("GET", "/v1/models", "models"),
        ("HEAD", "/v1/models", "models"),
        ("GET", "/v1/models/org/name", "models"),
        ("GET", "/v2/models/m/ready", "models"),
        ("POST", "/v1/files", "files"),
        ("GET", "/v1/files/file-1/content", "files"),
        ("POST", "/v1/batches/batch_1/cancel", "batches"),
        ("GET", "/v1/responses/resp_1/input_items", "responses"),
        ("DELETE", "/v1/responses/resp_1", "responses"),
        ("POST", "/v1/responses/resp_1/cancel", "responses"),
        ("GET", "/v1/conversations/conv_1/items", "conversations"),
        ("GET", "/metrics", "other"),
        ("GET", "/v1/chat/completions", "other"),
        ("DELETE", "/v1/whatever", "other"),
    ],
)
def test_what_computes_no_prompt_weighs_nothing(method, path, name):
    found = find_path(path, method)
    assert (found.name, found.prefills) == (name, False)


@pytest.mark.parametrize(
    ("method", "path", "model"),
    [
        ("GET", "/v1/models/sql", "sql"),
        ("GET", "/v1/models/org/name%20x", "org/name x"),
        ("POST", "/v2/models/m/infer", "m"),
        ("POST", "/v2/models/m/generate", "m"),
        ("POST", "/v1beta/models/m:generateContent", "m"),
        ("POST", "/openai/deployments/gpt-4/chat/completions?api-version=1", "gpt-4"),
        ("POST", "/v1/engines/davinci/completions", "davinci"),
        ("GET", "/openai/realtime?api-version=1&deployment=rt", "rt"),
        ("GET", "/v1/realtime?model=whisper", "whisper"),
        ("GET", "/v1/models/org/models/x", "org/models/x"),
        ("GET", "/v1/models//data/llama", "/data/llama"),
        ("GET", "/v1/models/llama3:8b", "llama3:8b"),
        ("GET", "/v2/models/org/m/ready", "org/m"),
        ("GET", "/v1/models/m/versions/2/metadata", "m"),
        ("POST", "/v2/models/org/m/infer", "org/m"),
        ("POST", "/v2/models/org/m/versions/1/generate", "org/m"),
        ("POST", "/v1/models/m/versions/1:predict", "m"),
        ("POST", "/v1beta/models/org/m:streamGenerateContent?alt=sse", "org/m"),
        ("POST", "/v1beta/models/m%3AgenerateContent", "m"),
        ("POST", "/v1beta/models/org%2Fm:batchEmbedContents", "org/m"),
        ("POST", "/model/vendor.m-v2%3A0/converse", "vendor.m-v2:0"),
        ("POST", "/endpoints/mine/invocations", None),
        ("POST", "/v1/whatever?x=1&model=a%2Fb", "a/b"),
        ("GET", "/v1/models", None),
        ("POST", "/v1/chat/completions", None),
        ("POST", "/v1/whatever?model=" + "x" * 5000, None),
    ],
)
def test_a_path_may_name_the_model(method, path, model):
    assert find_path(path, method).model == model


@given(
    st.text(max_size=300)
    | st.lists(st.sampled_from(["", "v1", "files", "models", "audio", "x"]), max_size=40).map("/".join),
    st.sampled_from(["GET", "POST", "DELETE", "PUT", "CONNECT", ""]),
)
def test_any_path_has_one_of_a_few_names(path, method):
    assert find_path(path, method).name in NAMES


def test_what_sglang_takes_by_put_is_what_it_is_by_post():
    """http_server.py registers these with `methods=["POST", "PUT"]`."""
    for path in ("/generate", "/encode", "/classify", "/v1/rerank"):
        assert find_path(path, "PUT") == find_path(path, "POST")


def test_a_path_longer_than_any_is_other():
    assert find_path("/models/" + "x" * 4096 + "/infer").name == OTHER


def test_a_name_is_read_one_way_and_each_row_tells_its_source():
    assert [api.name for api in PARSERS.values() if api.anthropic_errors] == ["messages"]
    assert all(row.source for row in TABLE)
    assert all(name == api.name and not api.understood for name, api in UNREAD.items())
    shapes = [(row.methods, row.shape) for row in TABLE]
    assert len(set(shapes)) == len(shapes)
