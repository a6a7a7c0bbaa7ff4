"""TLS towards metrics pages: public or private CAs, a client certificate, all read again when the files change.

Invariants: the file system is touched at most once in `CHECK_SECONDS`; files that turn bad never replace a context
that works; an open connection keeps the context it was opened with.
"""

import ssl
from pathlib import Path

from picker.config import EngineMetrics
from picker.files.files_in_use import FilesInUse
from picker.files.pem import load_cert_chain, reason

FILE_BYTES_MAX = 1024 * 1024
CHECK_SECONDS = 5.0

CLIENT_CERTIFICATE = "if it asks for a client certificate, give engine_metrics.tls.certificate_file and .key_file"

# OpenSSL's X509_V_ERR_...
_UNKNOWN_ISSUER = (2, 18, 19, 20, 21)
_OTHER_NAME = (62, 64)


class ScrapeTls:
    """`context(now)` for the next connection; `problem` is what is wrong with the files, if anything."""

    def __init__(self, settings: EngineMetrics) -> None:
        """Reads nothing yet."""
        files = settings.tls
        named = {
            "ca_file": files.ca_file,
            "certificate_file": files.certificate_file,
            "key_file": files.key_file,
        }
        self.server_name = files.server_name
        self._verifies = not settings.insecure_skip_verify
        self._keys = tuple(key for key, path in named.items() if path is not None)
        self._paths = tuple(Path(path) for path in named.values() if path is not None)
        self._context: ssl.SSLContext | None = None
        self._files = FilesInUse(self._paths, bytes_max=FILE_BYTES_MAX, check_seconds=CHECK_SECONDS, take=self._take)

    @property
    def problem(self) -> str | None:
        """As of the last look."""
        problem = self._files.problem
        return None if problem is None else f"engine_metrics.tls: {problem}"

    def context(self, now: float) -> ssl.SSLContext | None:
        """`None`: the files could not be used so far. `now`: monotonic seconds."""
        if self._keys:
            self._files.look(now)
        elif self._context is None:
            self._context = self._build(())
        return self._context

    def _take(self, contents: tuple[bytes, ...]) -> None:
        try:
            self._context = self._build(contents)
        except (ssl.SSLError, ValueError) as error:
            names = " and ".join(map(str, self._paths))
            raise ValueError(
                f"{names} cannot be used: {reason(error)}; expected PEM, certificate and key of one another, "
                "the key unencrypted"
            ) from None

    def _build(self, contents: tuple[bytes, ...]) -> ssl.SSLContext:
        given = dict(zip(self._keys, contents, strict=True))
        authority = given.get("ca_file")
        context = ssl.create_default_context(cadata=None if authority is None else authority.decode("ascii", "replace"))
        if not self._verifies:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if "certificate_file" in given:
            load_cert_chain(context, given["certificate_file"], given["key_file"])
        return context


def in_words(error: ssl.SSLError) -> str:
    """What went wrong in a handshake, with the key that mends it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        words = error.verify_message or "certificate not accepted"
        if error.verify_code in _UNKNOWN_ISSUER:
            return f"TLS: {words}; give its authority as engine_metrics.tls.ca_file"
        if error.verify_code in _OTHER_NAME:
            return f"TLS: {words}; say the name in the certificate as engine_metrics.tls.server_name"
        return f"TLS: {words}"
    words = reason(error)
    if "certificate required" in words or "handshake failure" in words:
        words += f"; {CLIENT_CERTIFICATE}"
    elif "wrong version number" in words or "record layer failure" in words:
        words += "; if it speaks plain HTTP, set engine_metrics.scheme: http"
    return f"TLS: {words}"
