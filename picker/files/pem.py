"""PEM for `ssl`, which reads certificates of its own only from files: a key of ours never rests on a disk."""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


def load_cert_chain(context: ssl.SSLContext, chain_pem: bytes, key_pem: bytes) -> None:
    """As `SSLContext.load_cert_chain`, from memory. Raises `ssl.SSLError`, `ValueError`."""
    with as_file(chain_pem) as chain_path, as_file(key_pem) as key_path:
        # A callable password keeps OpenSSL from asking the terminal for one.
        context.load_cert_chain(chain_path, key_path, password=_no_password)


def reason(error: Exception) -> str:
    """What `ssl` says, in words."""
    return (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()


def _no_password() -> str:
    raise ValueError("the private key is encrypted")


@contextmanager
def as_file(content: bytes) -> Iterator[str]:
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
