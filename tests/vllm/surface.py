"""What our fixtures assume of vLLM, asked of a live one: pages, APIs, streams, usage, refusals."""

import re
from collections.abc import Callable
from pathlib import Path

from picker.engines import recognise
from picker.engines.mapping import COUNTS, FIGURES, SHARES, read
from picker.engines.vllm import VLLM
from tests.vllm.caches import FIRST, SECOND, hit
from tests.vllm.servers import BLOCK_TOKENS, BLOCKS, MODEL, ask
from tests.vllm.stand import Seen, Stand

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "engines"


def pages(stand: Stand) -> None:
    """`/metrics` and `/v1/models` of both servers, read as the picker reads them."""
    topic = "pages"
    for index in (FIRST, SECOND):  # the gauge of adapters is not there before the first request
        stand.complete("Hello", index)
    recorded = _names((FIXTURES / "vllm-0.32-after.txt").read_bytes())
    for number, server in enumerate(stand.servers.all, 1):
        page = server.page()
        result = read(VLLM, page, uid="x", now=0.0)
        unknown = [name for name in (*COUNTS, *SHARES, *FIGURES) if getattr(result.sample, name) is None]
        unknown += ["adapters_running"] * (result.sample.adapters_running is None)
        at = f"server {number}:"
        stand.show(topic, f"{at} the page is recognised as vLLM's", recognise(page) is VLLM)
        stand.show(topic, f"{at} every figure that the mapping reads is there", not unknown, f"unknown: {unknown}")
        shape = (result.sample.block_size_tokens, result.sample.kv_capacity_tokens)
        stand.show(
            topic, f"{at} block size and capacity are those it was started with",
            shape == (BLOCK_TOKENS, BLOCK_TOKENS * BLOCKS), f"{shape[0]} and {shape[1]} tokens",
        )  # fmt: skip
        gone = sorted(recorded - _names(page))
        stand.show(topic, f"{at} every series of the recorded page is on the live one", not gone, f"gone: {gone}")
        listed = ask(f"{server.url}/v1/models").json()["data"]
        parents = {each["id"]: each["parent"] for each in listed}
        served = {"both", "one"} if number == 1 else {"both"}
        stand.show(
            topic, f"{at} /v1/models names each adapter's parent",
            parents == {MODEL: None, **dict.fromkeys(served, MODEL)}, parents,
        )  # fmt: skip
    unread, ready = stand.picker.metric("picker_unread_endpoints"), stand.picker.metric("picker_ready_endpoints")
    stand.show(
        topic, "the picker's own page has every server read and ready",
        (unread, ready) == (0, len(stand.servers.all)), f"{ready:.0f} ready, {unread:.0f} unread",
    )  # fmt: skip


def _names(page: bytes) -> set[str]:
    """Series of vLLM's own on a page, but for creation times."""
    found = {name.decode() for name in re.findall(rb"^(vllm:\w+)", page, re.MULTILINE)}
    return {name for name in found if not name.endswith("_created")}


def apis(stand: Stand) -> None:
    """Each API twice with one prompt: the second is a hit and expected, and usage is read to the token."""
    ids = [(7 * number) % 4000 + 10 for number in range(900)]
    prompt: dict[str, object] = {"max_tokens": 4}
    streamed: dict[str, object] = {**prompt, "stream": True, "stream_options": {"include_usage": True}}

    def chat() -> dict[str, object]:
        return {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": stand.text()}]}

    bodies: dict[str, tuple[str, dict[str, object]]] = {
        "chat completions": ("/v1/chat/completions", {**prompt, **chat()}),
        "chat completions, streamed": ("/v1/chat/completions", {**streamed, **chat()}),
        "completions": ("/v1/completions", {**prompt, "prompt": stand.text()}),
        "completions, streamed": ("/v1/completions", {**streamed, "prompt": stand.text()}),
        "completions, token ids": ("/v1/completions", {**prompt, "prompt": ids}),
        "generate, token ids": (
            "/inference/v1/generate",
            {"token_ids": [each + 5 for each in ids], "sampling_params": {"max_tokens": 4}},
        ),
        "responses": ("/v1/responses", {"input": stand.text(), "max_output_tokens": 4}),
        "responses, streamed": ("/v1/responses", {"input": stand.text(), "max_output_tokens": 4, "stream": True}),
        "messages": ("/v1/messages", {**prompt, "messages": [{"role": "user", "content": stand.text()}]}),
        "messages, streamed": (
            "/v1/messages",
            {**prompt, "messages": [{"role": "user", "content": stand.text()}], "stream": True},
        ),
    }
    for name, (path, body) in bodies.items():
        first = stand.ask(path, {"model": MODEL, **body}, FIRST)
        again = stand.ask(path, {"model": MODEL, **body}, FIRST)
        stand.show("APIs", f"{name}: said again, it is a hit and expected", hit(again), again.told())
        stand.show("APIs", f"{name}: usage is read to the token", _booked_right(first, again), _books(again))


def _booked_right(*each: Seen) -> bool:
    """The picker's telemetry has what the engine counted."""
    return all(
        seen.booked.observed == seen.engine.hits_tokens and seen.booked.prompt == seen.engine.queries_tokens
        for seen in each
    )


def _books(seen: Seen) -> str:
    return (
        f"picker booked {seen.booked.observed:.0f} of {seen.booked.prompt:.0f} (expected {seen.booked.predicted:.0f}), "
        f"vLLM {seen.engine.hits_tokens:.0f} of {seen.engine.queries_tokens:.0f}"
    )


def streams_without_usage(stand: Stand) -> None:
    """A client that asks for none gets none, and nothing is booked; the prefix counts all the same."""
    body = {"model": MODEL, "prompt": stand.text(), "max_tokens": 4, "stream": True}
    first, again = stand.ask("/v1/completions", body, FIRST), stand.ask("/v1/completions", body, FIRST)
    stand.show(
        "APIs",
        "a stream without usage: nothing is booked, the hit is expected and there",
        not first.usage and not again.booked.prompt and again.engine.hits_tokens > 0 and (again.matched or 0) > 0.5,
        again.told(),
    )


def stored_responses(stand: Stand) -> None:
    """A stored response is asked for where it was made."""
    made = stand.ask("/v1/responses", {"model": MODEL, "input": "Hello", "max_output_tokens": 4, "store": True}, SECOND)
    name = (made.answer.json() or {}).get("id", "")
    found = [stand.ask(f"/v1/responses/{name}") for _ in range(4)]
    stand.show(
        "APIs",
        "a stored response is found 4 times of 4, at the server that made it",
        all(seen.answer.status == 200 and seen.address == made.address for seen in found),
        f"statuses {[seen.answer.status for seen in found]}",
    )


def refusals(stand: Stand) -> None:
    """What an engine refuses passes as it is, and leaves nothing in the index."""
    body = {"model": MODEL, "input": stand.text()}
    refused = [stand.ask("/v1/embeddings", body, FIRST) for _ in range(2)]
    stand.show(
        "refusals", "embeddings, which this model cannot: the engine's 404, and the prompt is not taken for cached",
        [seen.answer.status for seen in refused] == [404, 404] and not refused[1].matched, refused[1].told(),
    )  # fmt: skip
    unknown = stand.complete(stand.text(300), model="nobody")
    stand.show(
        "refusals", "a model that nobody lists is the engine's to refuse",
        unknown.answer.status == 404 and "x-picker-reason" not in unknown.answer.headers, unknown.told(),
    )  # fmt: skip
    bad = stand.ask("/v1/chat/completions", b"{not json")
    stand.show(
        "refusals", "what is no JSON never reaches an engine",
        bad.answer.status == 400 and bad.answer.headers.get("x-picker-reason") == "invalid_json",
        f"status {bad.answer.status}, {bad.answer.headers.get('x-picker-reason')}",
    )  # fmt: skip
    long = stand.complete(stand.text(12_000), FIRST)
    stand.show(
        "refusals", "a prompt longer than the model: the engine's 400",
        long.answer.status == 400 and not long.engine.queries_tokens, f"status {long.answer.status}",
    )  # fmt: skip


def paths_beside(stand: Stand) -> None:
    """Paths that compute no prompt, each under its own label."""
    text = {"model": MODEL, "prompt": "Hello there"}
    message = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    cases: dict[str, tuple[str, Callable[[], Seen]]] = {
        "/tokenize": ("tokenize", lambda: stand.ask("/tokenize", text)),
        "/detokenize": ("detokenize", lambda: stand.ask("/detokenize", {"model": MODEL, "tokens": [300, 301]})),
        "/v1/messages/count_tokens": ("count_tokens", lambda: stand.ask("/v1/messages/count_tokens", message)),
        "/v1/chat/completions/render": ("render", lambda: stand.ask("/v1/chat/completions/render", message)),
        "/v1/messages/render": ("render", lambda: stand.ask("/v1/messages/render", message)),
        "/v1/responses/render": ("render", lambda: stand.ask("/v1/responses/render", {"model": MODEL, "input": "Hi"})),
        "/v1/models": ("models", lambda: stand.ask("/v1/models")),
    }
    for path, (label, send) in cases.items():
        before = stand.picker.metric("picker_requests_total", path=label)
        seen = send()
        counted = stand.picker.metric("picker_requests_total", path=label) - before
        stand.show(
            "APIs", f"`{path}` passes, counted as `{label}`, without a prompt computed",
            seen.answer.status == 200 and counted == 1 and not seen.engine.queries_tokens,
            f"status {seen.answer.status}",
        )  # fmt: skip


def all_of(stand: Stand) -> None:
    """Everything here, in order."""
    for check in (pages, apis, streams_without_usage, stored_responses, refusals, paths_beside):
        check(stand)
