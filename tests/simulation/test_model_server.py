"""The simulated model server over real sockets: what a recorded vLLM 0.32.0 does is what it does.

Engines run many times faster than life, so nothing here waits for long; no test looks at a duration.
"""

import asyncio
import json
import re
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from picker.engines.mapping import read
from picker.engines.vllm import VLLM
from picker.lab.load_client import LoadClient
from picker.lab.model_server import ServerFaults, SimulatedServer
from picker.sim.draws import Lengths
from picker.sim.profiles import PROFILES
from picker.sim.statistics import summarize
from picker.sim.workloads import Chat, first_requests, sessions

RECORDED = Path(__file__).parents[1] / "fixtures" / "engines" / "vllm-0.32-busy.txt"
SLOW_PROFILE = PROFILES["8b-h100"].faster(1e-4)  # a request stays in the engine until somebody ends it


@asynccontextmanager
async def serving(**options):
    server = SimulatedServer(**{"speed": 1000.0, "models": ("m", "sql"), **options})
    await server.start()
    try:
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(f"http://{server.address}", timeout=timeout) as http:
            yield server, http
    finally:
        await server.stop()


def chat_body(words="hello", **more):
    return {"model": "m", "messages": [{"role": "user", "content": words}], "max_tokens": 20, **more}


def events_of(raw):
    lines = [line for line in raw.decode().split("\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


async def scrape(http):
    async with http.get("/metrics") as answer:
        return await answer.read()


def value(page, name):
    return float(re.search(rb"^" + name.encode() + rb"\{[^}]*\} (\S+)$", page, re.MULTILINE)[1])


async def until(condition):
    """Wait for something that the server does in its own time; the suite's timeout bounds it."""
    while not await condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def test_a_whole_answer_and_its_second_time_cached():
    async def run():
        async with serving() as (server, http):
            words = "w" * 4000
            answers = []
            for _ in range(2):
                async with http.post("/v1/chat/completions", json=chat_body(words)) as answer:
                    assert (answer.status, answer.headers["x-served-by"]) == (200, server.address)
                    answers.append(await answer.json())
            first, second = answers
            message = first["choices"][0]["message"]
            assert (message["role"], len(message["content"])) == ("assistant", 80)
            assert first["choices"][0]["finish_reason"] == "length"
            assert message == second["choices"][0]["message"]
            assert first["id"] != second["id"]
            prompt = first["usage"]["prompt_tokens"]
            assert prompt == -(-len("<|user|>\n" + words + "\n<|assistant|>\n") // 4)
            assert first["usage"]["completion_tokens"] == 20
            assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == (prompt - 1) // 16 * 16
            async with http.post("/reset_prefix_cache") as answer:
                assert answer.status == 200
            async with http.post("/v1/chat/completions", json=chat_body(words)) as answer:
                assert (await answer.json())["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_streams_events_add_up_to_the_whole_answer(path):
    async def run():
        async with serving() as (_, http):
            body = {"max_tokens": 50, "model": "sql"}
            body |= {"prompt": "Once upon"} if path == "/v1/completions" else {"messages": chat_body()["messages"]}
            async with http.post(path, json=body) as answer:
                whole = await answer.json()
            body |= {"stream": True}
            async with http.post(path, json=body) as answer:
                assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
                silent = events_of(await answer.read())
            body |= {"stream_options": {"include_usage": True}}
            async with http.post(path, json=body) as answer:
                told = events_of(await answer.read())
            assert not any("usage" in event for event in silent)
            assert told[-1]["choices"] == []
            assert told[-1]["usage"]["completion_tokens"] == 50
            said = "".join(c.get("text", c.get("delta", {}).get("content")) for e in told for c in e["choices"])
            expected = whole["choices"][0]
            assert said == expected.get("text", expected.get("message", {}).get("content"))
            assert told[-2]["choices"][0]["finish_reason"] == "length"
            if path == "/v1/chat/completions":
                assert told[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}

    asyncio.run(run())


def test_a_list_of_prompts_gets_a_choice_each():
    async def run():
        async with serving() as (_, http):
            body = {"model": "m", "prompt": ["one", "two"], "max_tokens": 4}
            async with http.post("/v1/completions", json=body) as answer:
                found = await answer.json()
            assert [choice["index"] for choice in found["choices"]] == [0, 1]
            assert found["usage"] == {
                "prompt_tokens": 2,
                "total_tokens": 10,
                "completion_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
            async with http.post("/v1/completions", json=body | {"stream": True}) as answer:
                events = events_of(await answer.read())
            assert {choice["index"] for event in events for choice in event["choices"]} == {0, 1}

    asyncio.run(run())


def test_a_streams_headers_come_before_its_first_token():
    async def run():
        async with (
            serving(profile=SLOW_PROFILE, speed=1.0) as (server, http),
            http.post("/v1/chat/completions", json=chat_body(stream=True)) as answer,
        ):
            assert answer.status == 200  # the headers are here, and the first token is hours away
            assert server.engine.model.running == 1
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(answer.content.readany(), 0.02)

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place_in_the_engine(stream):
    async def run():
        async with serving(profile=SLOW_PROFILE.with_capacity(64), speed=1.0) as (server, http):
            asking = [
                asyncio.create_task(http.post("/v1/chat/completions", json=chat_body(stream=stream, max_tokens=8)))
                for _ in range(3)
            ]

            async def all_there():
                return (server.engine.model.running, server.engine.model.waiting) == (1, 2)

            await until(all_there)
            for task in asking:
                task.cancel()
            for answer in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(answer, aiohttp.ClientResponse):  # a stream whose headers had come
                    answer.close()

            async def nobody_waits():
                return server.engine.model.waiting == 0

            await until(nobody_waits)
            server.engine.set_speed(1e6)

            async def nobody_runs():
                return server.engine.model.running == 0

            await until(nobody_runs)

    asyncio.run(run())


def test_errors_have_vllms_shape():
    async def run():
        async with serving() as (_, http):
            async with http.post("/v1/chat/completions", json=chat_body(model="nope")) as answer:
                assert answer.status == 404
                assert await answer.json() == {
                    "error": {
                        "message": "The model `nope` does not exist. Valid aliases: m, sql.",
                        "type": "NotFoundError",
                        "param": "model",
                        "code": 404,
                    }
                }
            async with http.post("/v1/chat/completions", data=b"{") as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (400, 400)
            async with http.get("/v1/nothing") as answer:
                assert answer.status == 404

    asyncio.run(run())


def test_the_pickers_own_reader_understands_the_metrics_page():
    async def run():
        async with serving(profile=PROFILES["8b-h100"].with_capacity(160_000)) as (server, http):
            for _ in range(2):
                async with http.post("/v1/chat/completions", json=chat_body("w" * 4000)) as answer:
                    usage = (await answer.json())["usage"]
            page = await scrape(http)
            found = read(VLLM, page, uid="u", now=1.0).sample
            assert (found.waiting_requests, found.running_requests, found.kv_cache_utilization) == (0, 0, 0.0)
            assert (found.kv_capacity_tokens, found.block_size_tokens) == (160_000, 16)
            assert found.started_at_seconds == server.started_at
            assert found.prompt_tokens_total == found.prefix_queries_total == 2 * usage["prompt_tokens"]
            assert found.prefix_hits_total == usage["prompt_tokens_details"]["cached_tokens"]
            assert value(page, "vllm:generation_tokens_total") == 40

    asyncio.run(run())


def test_a_router_that_hashes_tokens_is_told_them_and_their_completion_is_the_same_prompts():
    """vLLM 0.32's `GenerateRequest` and `TokenizeResponse`, by their names there."""

    async def run():
        async with serving() as (server, http):
            body = chat_body("said before " * 40)
            async with http.post("/v1/chat/completions/render", json=body) as answer:
                rendered = await answer.json()
            async with http.post("/tokenize", json={"model": "m", "messages": body["messages"]}) as answer:
                tokenized = await answer.json()
            async with http.post("/v1/chat/completions", json=body) as answer:
                usage = (await answer.json())["usage"]
            async with http.post("/v1/completions", json={"prompt": rendered["token_ids"], "max_tokens": 1}) as answer:
                again = (await answer.json())["usage"]
            assert rendered["token_ids"] == tokenized["tokens"]
            assert len(rendered["token_ids"]) == tokenized["count"] == usage["prompt_tokens"] == again["prompt_tokens"]
            assert tokenized["max_model_len"] == server.context_tokens_max
            assert again["prompt_tokens_details"]["cached_tokens"] >= again["prompt_tokens"] - 16 > 0
            async with http.post("/v1/completions/render", json={"prompt": ["abcd", "abcde"]}) as answer:
                assert [one["token_ids"] for one in await answer.json()] == [[0x64636261], [0x64636261, 0x65]]
            for path, wrong in (("/v1/chat/completions/render", chat_body(model="nope")), ("/tokenize", {})):
                async with http.post(path, json=wrong) as answer:
                    assert answer.status == (404 if wrong else 400)
                    assert (await answer.json())["error"]["message"]

    asyncio.run(run())


def test_the_metrics_page_has_only_names_and_labels_of_a_recorded_one():
    def series(page):
        found = {}
        for name, labels in re.findall(rb"^([\w:]+)(?:\{(.*)\})? \S+$", page, re.MULTILINE):
            found[name] = set(re.findall(rb'(\w+)="', labels))
        return found

    async def run():
        async with serving() as (_, http):
            ours, recorded = series(await scrape(http)), series(RECORDED.read_bytes())
            for name, labels in ours.items():
                assert name in recorded
                if name == b"vllm:cache_config_info":  # theirs has thirty labels
                    assert labels <= recorded[name]
                else:
                    assert labels == recorded[name]

    asyncio.run(run())


def test_running_and_waiting_show_while_they_last():
    async def run():
        async with serving(profile=SLOW_PROFILE.with_capacity(64), speed=1.0) as (server, http):
            asking = [
                asyncio.create_task(http.post("/v1/completions", json={"prompt": "x" * 100, "max_tokens": 8}))
                for _ in range(3)
            ]

            async def all_there():
                return server.requests_total == 3

            await until(all_there)
            page = await scrape(http)
            assert value(page, "vllm:num_requests_running") == 1
            assert value(page, "vllm:num_requests_waiting") == 2
            assert value(page, "vllm:kv_cache_usage_perc") == 0.5
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    asyncio.run(run())


def test_health_version_and_models():
    async def run():
        async with serving() as (server, http):
            async with http.get("/health") as answer:
                assert (answer.status, await answer.read()) == (200, b"")
            async with http.get("/version") as answer:
                assert await answer.json() == {"version": "0.32.0"}
            async with http.get("/v1/models") as answer:
                models = (await answer.json())["data"]
            assert [(model["id"], model["parent"]) for model in models] == [("m", None), ("sql", "m")]
            assert models[0]["max_model_len"] == server.context_tokens_max

    asyncio.run(run())


def test_faults_on_demand():
    async def run():
        async with serving() as (server, http):
            async with http.post("/sim/faults", json={"status": 503}) as answer:
                assert answer.status == 200

            async def fails():
                async with http.post("/v1/chat/completions", json=chat_body()) as answer:
                    return answer.status == 503

            await until(fails)
            async with http.post("/sim/faults", json={"statuss": "x", "status": "y"}) as answer:
                assert answer.status == 400
            await server.set_faults(ServerFaults(hang=True))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(http.post("/v1/chat/completions", json=chat_body()), 0.05)
            port = server.port
            await server.set_faults(ServerFaults(refuse=True))
            with pytest.raises(aiohttp.ClientConnectionError):
                await http.post("/v1/chat/completions", json=chat_body())
            await server.set_faults(ServerFaults())
            assert server.port == port
            async with http.post("/v1/chat/completions", json=chat_body()) as answer:
                assert answer.status == 200

    asyncio.run(run())


def test_a_restart_empties_the_cache_and_moves_the_start_time():
    async def run():
        async with serving() as (server, http):
            async with http.post("/v1/chat/completions", json=chat_body("w" * 4000)) as answer:
                await answer.read()
            started, port = server.started_at, server.port
            await server.restart()
            assert (server.port, server.started_at > started) == (port, True)
            async with http.post("/v1/chat/completions", json=chat_body("w" * 4000)) as answer:
                assert (await answer.json())["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    asyncio.run(run())


def test_a_port_in_use_is_an_os_error():
    async def run():
        async with serving() as (server, _):
            with pytest.raises(OSError, match=str(server.port)):
                await SimulatedServer(port=server.port).start()

    asyncio.run(run())


def test_the_load_client_drives_whole_conversations():
    parameters = Chat(pause_seconds=Lengths(0.01, 0.5, 0.001, 0.05), streaming_share=0.5)
    wanted = list(first_requests(sessions("chat", 3, 200.0, parameters), 60))

    async def run():
        async with serving() as (server, _):
            seen = []
            client = LoadClient(f"http://{server.address}", on_sample=seen.append)
            duration = await client.run(wanted)
            assert client.samples == seen
            assert client.in_flight == 0
            return summarize(client.samples, [server.address, "127.0.0.1:9"], duration), client.samples

    figures, samples = asyncio.run(run())
    assert (figures.requests, figures.errors) == (60, 0)
    assert figures.requests_by_endpoint[samples[0].endpoint] == 60
    outputs = {(s.id, i): turn.answer.tokens for s in wanted for i, turn in enumerate(s.turns)}
    assert {(one.session, one.turn): one.output_tokens for one in samples} == outputs
    # A later turn finds all that was said before it, answers included, but for a last partial block.
    sizes = {(one.session, one.turn): one.prompt_tokens + one.output_tokens for one in samples}
    later = [one for one in samples if one.turn]
    assert len(later) > 20
    for one in later:
        assert one.cached_tokens >= sizes[one.session, one.turn - 1] - 16 - 1


@pytest.mark.parametrize(
    ("faults", "error"), [(ServerFaults(status=500), "status 500"), (ServerFaults(refuse=True), "ClientConnectorError")]
)
def test_the_load_client_says_what_went_wrong_and_goes_on(faults, error):
    wanted = list(first_requests(sessions("tools", 3, 500.0), 10))

    async def run():
        async with serving() as (server, _):
            await server.set_faults(faults)
            client = LoadClient(f"http://{server.address}")
            await client.run(wanted)
            return client.samples

    samples = asyncio.run(run())
    assert [one.error for one in samples] == [error] * 10


def test_the_load_client_gives_up_on_an_answer_that_never_ends():
    async def run():
        async with serving(profile=SLOW_PROFILE, speed=1.0) as (server, _):
            client = LoadClient(f"http://{server.address}", request_seconds_max=0.05)
            await client.run(list(first_requests(sessions("tools", 3, 500.0), 2)))
            return client.samples

    assert {one.error for one in asyncio.run(run())} == {"no end within the time limit"}
