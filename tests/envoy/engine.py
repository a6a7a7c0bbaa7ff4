"""A model server that lists models, reports adapters and stores responses, as a real vLLM was recorded doing."""

import itertools
import json
from pathlib import Path
from urllib.parse import urlsplit

from tests.envoy.upstream import Answer, Recorded, Upstream

_FIXTURES = Path(__file__).parents[1] / "fixtures"
MODELS = json.loads((_FIXTURES / "engines" / "vllm-0.32-models.json").read_bytes())
"""The base model `m` and its adapter `sql`."""
_IDLE = (_FIXTURES / "engines" / "vllm-0.32-idle.txt").read_text()
_BUSY = (_FIXTURES / "engines" / "vllm-0.32-busy.txt").read_text()
_ADAPTERS = "".join(line for line in _BUSY.splitlines(keepends=True) if line.startswith("vllm:lora_requests_info"))
METRICS = {"unused": _IDLE, "loaded": _IDLE + _ADAPTERS}
"""Idle, before its first request for `sql`; and with what it says of adapters while `sql` runs. Else equal."""
_EXCHANGES = _FIXTURES / "exchanges" / "vllm-0.32"
_RESPONSE = (_EXCHANGES / "responses.response.bin").read_bytes()
_STREAM = (_EXCHANGES / "responses-stream.response.bin").read_bytes()
_RESPONSE_ID = b"resp_a017a04f37616574"
_STREAM_ID = b"resp_bdcbfad72d7f86b7"


class Engine(Upstream):
    """Answers `/v1/models`, `/v1/responses` and `/v1/conversations`; everything else as the query asks."""

    def __init__(self, *, adapters: bool = True, metrics: str = "unused") -> None:
        super().__init__()
        listed = [each for each in MODELS["data"] if adapters or each["parent"] is None]
        self._models = json.dumps({**MODELS, "data": listed}).encode()
        self.metrics_page = METRICS[metrics]
        self._numbers = itertools.count()

    async def answer(self, request: Recorded, answer: Answer) -> None:
        path = urlsplit(request.target).path
        if path == "/v1/models":
            await send(answer, self._models, "application/json")
        elif path in ("/v1/responses", "/v1/conversations") and request.method == "POST":
            name = f"resp_{self.port}x{next(self._numbers)}".encode()
            if json.loads(request.body or b"{}").get("stream"):
                await send(answer, _STREAM.replace(_STREAM_ID, name), "text/event-stream; charset=utf-8")
            else:
                await send(answer, _RESPONSE.replace(_RESPONSE_ID, name), "application/json")
        else:
            await super().answer(request, answer)

    def owns(self, response_id: str) -> bool:
        """Whether it made this response."""
        return response_id.startswith(f"resp_{self.port}x")


async def send(answer: Answer, body: bytes, content_type: str) -> None:
    await answer.head(200, [("content-type", content_type), ("content-length", str(len(body)))])
    half = len(body) // 2
    await answer.chunk(body[:half])
    await answer.chunk(body[half:])
    await answer.end()
