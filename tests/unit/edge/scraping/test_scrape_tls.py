"""Metrics pages over https: private authorities, names, client certificates, rotation, and words that name the key."""

import asyncio
import ipaddress
import logging
import os
import random
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from picker.config import EngineMetrics, load
from picker.edge.scraping.scraper import EngineScraper
from picker.edge.scraping.tls import CHECK_SECONDS, ScrapeTls
from picker.files.pem import load_cert_chain
from picker.pool.specs import EndpointSpec, EngineSample
from tests.unit.edge.loopback import LoopbackServer, answer

FIXTURES = Path(__file__).parents[3] / "fixtures" / "engines"
VLLM = answer((FIXTURES / "vllm-0.32-busy.txt").read_bytes())


class Pair(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def chain_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def issue(name: str, issuer: Pair | None = None, *alternatives: x509.GeneralName) -> Pair:
    """An authority of its own, or signed by one. Python 3.13 wants key identifiers and usage."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if issuer is None:
        signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(signs, critical=True)
    else:
        above = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())
        builder = builder.add_extension(above, critical=False)
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return Pair(builder.sign(key if issuer is None else issuer.key, hashes.SHA256()), key)


AUTHORITY, OTHER_AUTHORITY = issue("private authority"), issue("another authority")
BY_ADDRESS = issue("server", AUTHORITY, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
BY_NAME = issue("server", AUTHORITY, x509.DNSName("vllm.llm.svc"))
CLIENT = issue("picker", AUTHORITY)


def server_tls(pair: Pair, *, ask_for: Pair | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_cert_chain(context, pair.chain_pem, pair.key_pem)
    if ask_for is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=ask_for.chain_pem.decode())
    return context


def put(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    os.utime(path, (1, 1))
    return str(path)


def settings(**tls: str | None) -> EngineMetrics:
    text = "".join(f"    {key}: {value}\n" for key, value in tls.items())
    scheme = "engine_metrics:\n  scheme: https\n  engine: vllm\n  interval_seconds: 0.05\n  tls:\n"
    return load(scheme + text).engine_metrics


async def outcome(server: LoopbackServer, metrics: EngineMetrics) -> str:
    """`read`, or why not."""
    news: asyncio.Queue[str] = asyncio.Queue()

    def record(sample: EngineSample) -> None:
        news.put_nowait("read")

    scraper = EngineScraper(
        settings=metrics,
        endpoints=lambda: [EndpointSpec(address=f"127.0.0.1:{server.port}", uid="a", name="a")],
        record=record,
        failed=lambda uid, why: news.put_nowait(why),
        port_answers=lambda uid, answers: None,
        clock=time.monotonic,
        rng=random.Random(1),
        log=logging.getLogger("test.tls"),
        models_interval_seconds=None,
    )
    task = asyncio.create_task(scraper.run())
    try:
        return await asyncio.wait_for(news.get(), 20)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


LOOPS = pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
LoopFactory = Callable[[], asyncio.AbstractEventLoop] | None


@LOOPS
def test_private_authorities_names_and_client_certificates(tmp_path: Path, loop_factory: LoopFactory) -> None:
    ca = put(tmp_path / "ca.pem", AUTHORITY.chain_pem)
    other = put(tmp_path / "other.pem", OTHER_AUTHORITY.chain_pem)
    client = {
        "certificate_file": put(tmp_path / "client.pem", CLIENT.chain_pem),
        "key_file": put(tmp_path / "client.key", CLIENT.key_pem),
    }

    async def scenario() -> None:
        async with LoopbackServer(lambda head: VLLM, tls=server_tls(BY_ADDRESS)) as server:
            assert await outcome(server, settings(ca_file=ca)) == "read"
            assert "engine_metrics.tls.ca_file" in await outcome(server, settings(ca_file=other))
            assert "engine_metrics.tls.ca_file" in await outcome(server, settings(server_name="a"))
        async with LoopbackServer(lambda head: VLLM, tls=server_tls(BY_NAME)) as server:
            assert "engine_metrics.tls.server_name" in await outcome(server, settings(ca_file=ca))
            assert await outcome(server, settings(ca_file=ca, server_name="vllm.llm.svc")) == "read"
        async with LoopbackServer(lambda head: VLLM, tls=server_tls(BY_ADDRESS, ask_for=AUTHORITY)) as server:
            assert await outcome(server, settings(ca_file=ca, **client)) == "read"
            assert "engine_metrics.tls.certificate_file" in await outcome(server, settings(ca_file=ca))

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())


@LOOPS
def test_the_wrong_scheme_is_named(loop_factory: LoopFactory) -> None:
    """A server of plain HTTP takes the handshake for a bad request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer(b"", "400 Bad Request"))
        writer.close()

    async def scenario() -> None:
        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        server = LoopbackServer(lambda head: VLLM)
        server.port = listening.sockets[0].getsockname()[1]
        async with listening:
            assert "engine_metrics.scheme: http" in await outcome(server, settings(server_name="a"))

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"ca_file": b"no pem"}, "cannot be used"),
        ({"ca_file": None}, "No such file"),
        ({"certificate_file": CLIENT.chain_pem, "key_file": BY_NAME.key_pem}, "key values mismatch"),
    ],
)
def test_files_that_cannot_be_used_are_named_with_the_key(
    tmp_path: Path, files: dict[str, bytes | None], words: str
) -> None:
    paths = {key: str(tmp_path / key) for key in files}
    for key, content in files.items():
        if content is not None:
            put(tmp_path / key, content)

    async def scenario() -> None:
        async with LoopbackServer(lambda head: VLLM, tls=server_tls(BY_ADDRESS)) as server:
            why = await outcome(server, settings(**paths))
            assert "engine_metrics.tls" in why and words in why and all(path in why for path in paths.values())

    asyncio.run(scenario())


def test_files_are_read_again_when_they_change_and_bad_ones_replace_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    put(path, AUTHORITY.chain_pem)
    tls = ScrapeTls(settings(ca_file=str(path)))
    now = 0.0
    first = tls.context(now)
    assert first is not None and tls.problem is None

    def later() -> ssl.SSLContext | None:
        nonlocal now
        for _ in range(2):  # two looks agree
            now += CHECK_SECONDS
            found = tls.context(now)
        return found

    assert later() is first
    put(path, b"no pem")
    assert later() is first
    assert tls.problem is not None and str(path) in tls.problem
    path.unlink()
    assert later() is first
    assert tls.problem is not None and "No such file" in tls.problem
    put(path, OTHER_AUTHORITY.chain_pem)
    second = later()
    assert second is not None and second is not first and tls.problem is None
    (known,) = second.get_ca_certs()
    assert "another authority" in str(known["subject"])


def test_the_file_system_is_not_touched_between_looks(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    put(path, AUTHORITY.chain_pem)
    tls = ScrapeTls(settings(ca_file=str(path)))
    first = tls.context(0.0)
    path.unlink()
    assert tls.context(CHECK_SECONDS - 0.1) is first
    assert tls.problem is None
