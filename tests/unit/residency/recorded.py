"""The recorded events of a real vLLM, in their order between the requests that caused them."""

import base64
import json
from pathlib import Path

FIXTURES = Path(__file__).parents[2] / "fixtures" / "kv_events"


def lines():
    """Requests, frames and replays, as recorded."""
    return [json.loads(line) for line in (FIXTURES / "vllm-0.32-session-id.jsonl").read_text().splitlines()]


def frames(line) -> list[bytes]:
    return [base64.b64decode(frame) for frame in line["frames"]]


def with_topic() -> list[list[bytes]]:
    text = (FIXTURES / "vllm-0.32-topic.jsonl").read_text()
    return [[bytes.fromhex(frame) for frame in json.loads(line)] for line in text.splitlines()]
