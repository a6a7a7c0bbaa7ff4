"""Certificates of the gRPC port: made in memory, or read from files and read again when they change.

Both transports take the `ServerContext` made here: an `ssl.SSLContext` that remembers the PEM it
was made from, because gRPC's own TLS wants PEM and asyncio's wants a context.

Invariants: a private key of ours never rests on a disk (`ssl` reads only files, so PEM goes
through an anonymous memory file, or where there is none a 0600 file that is removed at once);
broken new files never replace a working certificate.
"""

import asyncio
import ipaddress
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from picker.config import Tls
from picker.files.followed_file import FileProblem, FollowedFiles
from picker.files.pem import load_cert_chain, reason

_VALID_DAYS = 3650


class TlsError(Exception):
    """A certificate or key that cannot be used; the text names the file and what to do."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate chain (the server's own first) and its private key, both PEM."""

    chain_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        """Without the key: a value like this ends up in tracebacks."""
        return f"Certificate({len(self.chain_pem)} bytes of chain)"


class ServerContext(ssl.SSLContext):
    """A server's `SSLContext` that knows its `certificate`. Made by `server_context`."""

    certificate: Certificate


def server_context(certificate: Certificate) -> ServerContext:
    """TLS 1.2 or newer, ALPN h2, this certificate. Raises `TlsError` when chain and key do not fit."""
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # RFC 9113 section 9.2: no compression, no renegotiation; the suites of its appendix A stay out.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    context.set_alpn_protocols(["h2"])
    try:
        load_cert_chain(context, certificate.chain_pem, certificate.key_pem)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"certificate and key cannot be used together: {reason(error)}") from None
    context.certificate = certificate
    return context


def self_signed(
    now: datetime | None = None, names: tuple[str, ...] = ("localhost",), addresses: tuple[str, ...] = ("127.0.0.1",)
) -> Certificate:
    """A fresh EC P-256 certificate for 10 years. For proxies that encrypt and do not verify, Envoy's usual setup."""
    start = (now or datetime.now(UTC)) - timedelta(hours=1)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "inference-picker")])
    alternatives: list[x509.GeneralName] = [x509.DNSName(each) for each in names]
    alternatives += [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        chain_pem=certificate.public_bytes(serialization.Encoding.PEM),
        key_pem=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


FILE_BYTES_MAX = 1024 * 1024


class CertificateFiles:
    """A chain file and a key file, watched by content (a Kubernetes secret changes by symbolic link)."""

    def __init__(self, chain_path: str, key_path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads both at once. Raises `TlsError`."""
        self._chain_path = chain_path
        self._key_path = key_path
        self._files = FollowedFiles((Path(chain_path), Path(key_path)), bytes_max=FILE_BYTES_MAX, clock=clock)
        try:
            chain_pem, key_pem = self._files.start()
        except FileProblem as problem:
            raise TlsError(f"certificate files: {problem}") from None
        self.context = self._build(Certificate(chain_pem=chain_pem, key_pem=key_pem))

    def reload_if_changed(self) -> ServerContext | None:
        """A new context when the files changed and have settled, None when they did not.

        Raises `TlsError` once for each bad state of the files; `context` stays what it was.
        """
        try:
            found = self._files.poll()
        except FileProblem as problem:
            raise TlsError(str(problem)) from None
        if found is None:
            return None
        certificate = Certificate(chain_pem=found[0], key_pem=found[1])
        if certificate == self.context.certificate:
            return None  # bad for a while, and back
        self.context = self._build(certificate)
        return self.context

    async def follow(
        self, seconds: float, *, replaced: Callable[[ServerContext], None], refused: Callable[[TlsError], None]
    ) -> None:
        """Look every so many seconds, in a thread, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            try:
                context = await asyncio.to_thread(self.reload_if_changed)
            except TlsError as error:
                refused(error)
                continue
            if context is not None:
                replaced(context)

    def _build(self, certificate: Certificate) -> ServerContext:
        try:
            return server_context(certificate)
        except TlsError as error:
            raise TlsError(
                f"{self._chain_path} and {self._key_path}: {error}; the chain file needs the server's certificate "
                "first, and the key file that certificate's unencrypted private key, both PEM"
            ) from None


def certificates(files: Tls, *, insecure: bool) -> CertificateFiles | ServerContext | None:
    """Files where configured, in memory where not, nothing where insecure. Raises `TlsError`."""
    if insecure:
        return None
    if files.certificate_file is not None and files.key_file is not None:
        return CertificateFiles(files.certificate_file, files.key_file)
    return server_context(self_signed())
