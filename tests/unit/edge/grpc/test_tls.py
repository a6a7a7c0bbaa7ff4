"""Certificates: made, read, replaced; a bad file never replaces a good one, a key never rests on a disk."""

import os
import ssl
import stat
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from picker.edge.grpc.tls import Certificate, CertificateFiles, TlsError, self_signed, server_context


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(10):
        for end in (theirs, ours):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ours, theirs


def client_context(root: Certificate, *alpn: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=root.chain_pem.decode())
    context.set_alpn_protocols(list(alpn))
    return context


def test_a_self_signed_certificate_is_what_it_says() -> None:
    made = self_signed(datetime(2026, 11, 30, tzinfo=UTC))
    certificate = x509.load_pem_x509_certificate(made.chain_pem)
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert certificate.not_valid_before_utc < datetime(2026, 11, 30, tzinfo=UTC)
    assert certificate.not_valid_after_utc.year == 2036
    private = serialization.load_pem_private_key(made.key_pem, None)
    assert private.public_key() == key
    assert self_signed().key_pem != made.key_pem


def test_a_certificate_does_not_print_its_key() -> None:
    made = self_signed()
    assert "PRIVATE" not in repr(made)
    assert "PRIVATE" not in f"{made}"


def test_the_handshake_speaks_h2_over_tls_1_2_or_newer() -> None:
    made = self_signed()
    server = server_context(made)
    assert server.certificate == made
    ours, theirs = handshake(server, client_context(made, "http/1.1", "h2"))
    assert theirs.selected_alpn_protocol() == ours.selected_alpn_protocol() == "h2"
    assert theirs.version() == "TLSv1.3"
    older = client_context(made, "h2")
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    _, theirs = handshake(server, older)
    assert theirs.version() == "TLSv1.2"
    cipher = theirs.cipher()
    assert cipher is not None
    assert cipher[0].startswith("ECDHE")


def test_tls_1_1_is_refused() -> None:
    made = self_signed()
    ancient = client_context(made, "h2")
    with pytest.warns(DeprecationWarning):
        ancient.minimum_version = ssl.TLSVersion.TLSv1_1
        ancient.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        handshake(server_context(made), ancient)


def test_a_key_that_does_not_fit_is_named() -> None:
    one, other = self_signed(), self_signed()
    with pytest.raises(TlsError, match="key values mismatch"):
        server_context(Certificate(chain_pem=one.chain_pem, key_pem=other.key_pem))
    with pytest.raises(TlsError, match="cannot be used"):
        server_context(Certificate(chain_pem=b"not a certificate", key_pem=one.key_pem))


def test_an_encrypted_key_is_an_error_and_never_a_question() -> None:
    made = self_signed()
    key = serialization.load_pem_private_key(made.key_pem, None)
    locked = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    with pytest.raises(TlsError, match="encrypted"):
        server_context(Certificate(chain_pem=made.chain_pem, key_pem=locked))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def watch(chain: Path, key: Path) -> tuple[CertificateFiles, Clock]:
    """The files as if written long ago: at the start they are believed at once."""
    for path in (chain, key):
        os.utime(path, (1, 1))
    clock = Clock()
    return CertificateFiles(str(chain), str(key), clock=clock), clock


def settled(watched: CertificateFiles, clock: Clock) -> ssl.SSLContext | None:
    """What two looks a second apart say."""
    found = watched.reload_if_changed()
    clock.now += 1
    return found or watched.reload_if_changed()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    made = self_signed()
    chain, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    chain.write_bytes(made.chain_pem)
    key.write_bytes(made.key_pem)
    yield chain, key


def test_files_are_read_again_when_their_content_changes(files: tuple[Path, Path]) -> None:
    chain, key = files
    watched, clock = watch(chain, key)
    first = watched.context
    assert settled(watched, clock) is None
    os.utime(chain, (0, 0))
    assert settled(watched, clock) is None
    made = self_signed()
    chain.write_bytes(made.chain_pem)
    assert watched.reload_if_changed() is None  # half of the pair: a second look would still differ
    key.write_bytes(made.key_pem)
    second = settled(watched, clock)
    assert second is watched.context is not first
    assert watched.context.certificate == made
    assert settled(watched, clock) is None


def test_a_secret_that_changes_by_symbolic_link_is_noticed(tmp_path: Path) -> None:
    """How a kubelet updates a mounted secret: `..data` is renamed over."""
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        made = self_signed()
        (tmp_path / version / "tls.crt").write_bytes(made.chain_pem)
        (tmp_path / version / "tls.key").write_bytes(made.key_pem)
    (tmp_path / "..data").symlink_to("one")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    watched, clock = watch(tmp_path / "tls.crt", tmp_path / "tls.key")
    (tmp_path / "..new").symlink_to("two")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert settled(watched, clock) is not None
    assert watched.context.certificate.chain_pem == (tmp_path / "two" / "tls.crt").read_bytes()


@pytest.mark.parametrize("bad", [b"", b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n"])
def test_bad_new_files_keep_the_old_certificate_and_say_so_once(files: tuple[Path, Path], bad: bytes) -> None:
    chain, key = files
    good = chain.read_bytes()
    watched, clock = watch(chain, key)
    context = watched.context
    chain.write_bytes(bad)
    with pytest.raises(TlsError) as caught:
        settled(watched, clock)
    assert str(chain) in str(caught.value)
    assert watched.context is context
    assert settled(watched, clock) is None
    chain.write_bytes(good)
    settled(watched, clock)
    assert watched.context.certificate.chain_pem == good


def test_files_that_vanish_keep_the_old_certificate_and_say_so_once(files: tuple[Path, Path]) -> None:
    chain, key = files
    good = key.read_bytes()
    watched, clock = watch(chain, key)
    context = watched.context
    key.unlink()
    with pytest.raises(TlsError, match=f"{key}: No such file"):
        settled(watched, clock)
    assert settled(watched, clock) is None
    key.write_bytes(good)
    assert settled(watched, clock) is None
    assert watched.context is context


def test_files_that_cannot_be_read_at_the_start_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r"certificate files: .*missing"):
        CertificateFiles(str(tmp_path / "missing.crt"), str(tmp_path / "missing.key"))


def test_without_memory_files_a_private_temporary_one_is_used_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    real = tempfile.mkstemp

    def spy() -> tuple[int, str]:
        descriptor, path = real(dir=tmp_path)
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor, path

    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "mkstemp", spy)
    made = self_signed()
    server_context(made)
    with pytest.raises(TlsError):
        server_context(Certificate(chain_pem=made.chain_pem, key_pem=b"no key"))
    assert modes == [0o600] * 4
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_where_there_are_memory_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only root file system without /tmp, as hardened pods have it."""
    if not hasattr(os, "memfd_create"):
        pytest.skip("no memfd_create here")

    def refuse(*_: object, **__: object) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    server_context(self_signed())
