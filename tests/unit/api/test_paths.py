"""Which API a path names."""

import pytest

from picker.api import PARSERS, find_api


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
        ("/v1/models", None),
        ("/v1/responses/resp_1/cancel", None),
        ("/v1/messages/count_tokens", None),
        ("/v1/chat/completionsx", None),
        ("/v1/xcompletions", None),
        ("/v1/Chat/Completions", None),
        ("/v1/chat%2Fcompletions", None),
        ("/rerank", None),
        ("/v1/audio/transcriptions", None),
        ("/?/v1/chat/completions", None),
        ("*", None),
        ("/", None),
        ("", None),
    ],
)
def test_a_path_is_matched_by_its_end_without_query(path, name):
    found = find_api(path)
    assert (found.name if found else None) == name


def test_names_are_labels_each_once():
    assert len({api.name for api in PARSERS.values()}) == len(PARSERS)
    assert [api.name for api in PARSERS.values() if api.anthropic_errors] == ["messages"]
