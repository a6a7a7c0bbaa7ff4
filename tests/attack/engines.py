"""`python -m tests.attack.engines TRICK...`: a decent engine, and one for each trick. Prints their ports.

The decent one shows an idle vLLM's metrics and answers every POST; with a header `x-answer-bytes`, as many. A trick
plays with the metrics page, or with the list of models.
"""

import asyncio
import contextlib
import socket
import sys
import zlib
from collections.abc import Awaitable, Callable
from itertools import count

PAGE = b"""vllm:num_requests_running{model_name="m"} 0
vllm:num_requests_waiting{model_name="m"} 0
vllm:kv_cache_usage_perc{model_name="m"} 0
vllm:cache_config_info{block_size="16",num_gpu_blocks="25000"} 1
"""
ANSWER = b'{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":5}}'
Writer = asyncio.StreamWriter
_serial = count()


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def for_ever(writer: Writer, data: bytes) -> None:
    while True:
        writer.write(data)
        await writer.drain()


async def decent(writer: Writer) -> None:
    writer.write(ok(PAGE))


async def endless_interim_answers(writer: Writer) -> None:
    await for_ever(writer, b"HTTP/1.1 100 Continue\r\n\r\n" * 4_000)


async def chunks_of_a_byte(writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    await for_ever(writer, b"1\r\nx\r\n" * 8_000)


async def endless_head(writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    await for_ever(writer, b"a: b\r\n" * 8_000)


async def endless_body(writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    await for_ever(writer, b"x" * 65_536)


async def a_byte_now_and_then(writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.3)


async def labels_of_megabytes(writer: Writer) -> None:
    writer.write(ok(b'vllm:num_requests_running{model_name="' + b"\\" * 1_900_000 + b'"} 0\n' + PAGE))


async def labels_without_number(writer: Writer) -> None:
    writer.write(ok(b"vllm:num_requests_running{" + b'a="b",' * 300_000 + b"} 0\n" + PAGE))


async def series_without_number(writer: Writer) -> None:
    run = next(_serial)
    lines = [b'vllm:num_requests_running{model_name="m%d-%d"} 1\n' % (run, number) for number in range(30_000)]
    writer.write(ok(b"".join(lines) + PAGE))


async def adapters_without_number(writer: Writer) -> None:
    names = b",".join(b"a%d" % number for number in range(150_000))
    writer.write(
        ok(PAGE + b'vllm:lora_requests_info{max_lora="9",running_lora_adapters="%b"} %d\n' % (names, next(_serial)))
    )


async def names_everywhere(writer: Writer) -> None:
    writer.write(ok(b"xvllm:num_requests_running{ " * 70_000))


async def nothing_but_numbers(writer: Writer) -> None:
    """Valid, and beyond every machine."""
    writer.write(
        ok(
            b"vllm:num_requests_running 1e308\nvllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc -1\n"
            b'vllm:cache_config_info{block_size="999999999999999",num_gpu_blocks="999999999999999"} 1\n'
            b"vllm:prompt_tokens_total 1e308\nprocess_start_time_seconds %d\n" % next(_serial)
        )
    )


async def families_without_number(writer: Writer) -> None:
    writer.write(ok(PAGE + b"".join(b"# HELP f%d x\n# TYPE f%d gauge\nf%d 1\n" % (n, n, n) for n in range(40_000))))


async def a_compressed_page(writer: Writer) -> None:
    bomb = zlib.compress(b"a" * 50_000_000, 9)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-encoding: deflate\r\ncontent-length: %d\r\n\r\n" % len(bomb) + bomb)


async def pages_that_were_not_asked_for(writer: Writer) -> None:
    writer.write(ok(PAGE) * 200)


async def a_way_elsewhere(writer: Writer) -> None:
    writer.write(b"HTTP/1.1 302 Found\r\nlocation: file:///etc/passwd\r\ncontent-length: 0\r\n\r\n")


async def bytes_of_all_kinds(writer: Writer) -> None:
    writer.write(ok(bytes(range(256)) * 8_000))


async def two_lengths(writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 500\r\n\r\nhello")


async def models_without_number(writer: Writer) -> None:
    """Of the list of models; the metrics are decent."""
    names = b",".join(b'{"id":"m%d","parent":"m"}' % number for number in range(60_000))
    writer.write(ok(b'{"data":[%b]}' % names))


async def models_too_deep(writer: Writer) -> None:
    writer.write(ok(b'{"data":' + b'[{"id":' * 250_000))


async def a_model_as_long_as_its_page(writer: Writer) -> None:
    writer.write(ok(b'{"data":[{"id":"%b"}]}' % ("\U0001f600".encode() * 450_000)))


OF_MODELS = (models_without_number, models_too_deep, a_model_as_long_as_its_page)
TRICKS: dict[str, Callable[[Writer], Awaitable[None]]] = {
    "decent": decent,
    "endless_interim_answers": endless_interim_answers,
    "chunks_of_a_byte": chunks_of_a_byte,
    "endless_head": endless_head,
    "endless_body": endless_body,
    "a_byte_now_and_then": a_byte_now_and_then,
    "labels_of_megabytes": labels_of_megabytes,
    "labels_without_number": labels_without_number,
    "series_without_number": series_without_number,
    "adapters_without_number": adapters_without_number,
    "names_everywhere": names_everywhere,
    "nothing_but_numbers": nothing_but_numbers,
    "families_without_number": families_without_number,
    "a_compressed_page": a_compressed_page,
    "pages_that_were_not_asked_for": pages_that_were_not_asked_for,
    "a_way_elsewhere": a_way_elsewhere,
    "bytes_of_all_kinds": bytes_of_all_kinds,
    "two_lengths": two_lengths,
    **{each.__name__: each for each in OF_MODELS},
}


async def main(names: list[str]) -> None:
    ports = []
    for name in names:

        async def serve(reader: asyncio.StreamReader, writer: Writer, name: str = name) -> None:
            with contextlib.suppress(Exception):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    answer = ANSWER if head.startswith(b"POST") else b'{"data":[]}'
                    for line in head.lower().split(b"\r\n"):
                        if line.startswith(b"content-length:"):
                            await reader.readexactly(int(line.partition(b":")[2]))
                        elif line.startswith(b"x-answer-bytes:"):
                            length = int(line.partition(b":")[2])
                            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length)
                            for _ in range(length // 50_000):
                                writer.write(b" " * 50_000)
                                await writer.drain()
                            answer = b""
                    trick = TRICKS[name]
                    if b" /metrics " in head:
                        await (decent if trick in OF_MODELS else trick)(writer)
                    elif trick in OF_MODELS and head.startswith(b"GET"):
                        await trick(writer)
                    elif answer:
                        writer.write(ok(answer))
                    await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
        # So that what is not read stays here, and the kernel keeps little of it.
        server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        ports.append(server.sockets[0].getsockname()[1])
    print(*ports, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
