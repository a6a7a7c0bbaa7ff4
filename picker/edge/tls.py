"""Certificates of the gRPC port: made in memory, or read from files and read again when they change.

Both transports take the `ServerContext` made here: an `ssl.SSLContext` that remembers the PEM it
was made from, because gRPC's own TLS wants PEM and asyncio's wants a context.

Invariants: a private key of ours never rests on a disk (`ssl` reads only files, so PEM goes
through an anonymous memory file, or where there is none a 0600 file that is removed at once);
broken new files never replace a working certificate.
"""

import ipaddress
import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

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
        with _as_file(certificate.chain_pem) as chain_path, _as_file(certificate.key_pem) as key_path:
            # A callable password keeps OpenSSL from asking the terminal for one.
            context.load_cert_chain(chain_path, key_path, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"certificate and key cannot be used together: {_reason(error)}") from None
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


class CertificateFiles:
    """A chain file and a key file, watched by content (a Kubernetes secret changes by symbolic link)."""

    def __init__(self, chain_path: str, key_path: str) -> None:
        """Reads both at once. Raises `TlsError`."""
        self._chain_path = chain_path
        self._key_path = key_path
        self._seen = self._read()
        self.context = self._build(self._seen)

    def reload_if_changed(self) -> ServerContext | None:
        """A new context when the files changed, None when they did not.

        Raises `TlsError` once for each bad state of the files; `context` stays what it was.
        """
        try:
            found = self._read()
        except TlsError:
            if self._seen is None:
                return None
            self._seen = None
            raise
        if found == self._seen or (self._seen is None and found == self.context.certificate):
            self._seen = found
            return None
        self._seen = found
        self.context = self._build(found)
        return self.context

    def _read(self) -> Certificate | None:
        found = []
        for what, path in (("certificate", self._chain_path), ("key", self._key_path)):
            try:
                found.append(Path(path).read_bytes())
            except OSError as error:
                reason = error.strerror or str(error)
                raise TlsError(f"{what} file {path}: {reason}; check the path and its permissions") from None
        return Certificate(chain_pem=found[0], key_pem=found[1])

    def _build(self, certificate: Certificate | None) -> ServerContext:
        assert certificate is not None
        try:
            return server_context(certificate)
        except TlsError as error:
            raise TlsError(
                f"{self._chain_path} and {self._key_path}: {error}; the chain file needs the server's certificate "
                "first, and the key file that certificate's unencrypted private key, both PEM"
            ) from None


def _no_password() -> str:
    raise ValueError("the private key is encrypted")


def _reason(error: Exception) -> str:
    return (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path from which `content` can be read once, for nobody else."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    descriptor, path = tempfile.mkstemp()  # mode 0600
    try:
        os.write(descriptor, content)
        os.close(descriptor)
        yield path
    finally:
        os.unlink(path)
