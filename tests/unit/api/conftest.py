"""Recorded exchanges, and short ways to read a body."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from picker.api import find_api, read_body
from picker.api.request import InferenceRequest

EXCHANGES = Path(__file__).parents[2] / "fixtures" / "exchanges" / "vllm-0.32"


@pytest.fixture
def recorded() -> Callable[[str], bytes]:
    """`recorded("chat.request.json")`."""
    return lambda name: (EXCHANGES / name).read_bytes()


@pytest.fixture
def read() -> Callable[..., InferenceRequest]:
    """`read("/v1/chat/completions", messages=[...])`, or with a body of bytes."""

    def parse(path: str, body: bytes | None = None, **fields: Any) -> InferenceRequest:
        api = find_api(path)
        assert api is not None
        return read_body(api, body if body is not None else json.dumps(fields, separators=(",", ":")).encode())

    return parse
