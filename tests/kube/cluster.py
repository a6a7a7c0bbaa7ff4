"""A real kube-apiserver on a real etcd, on loopback, for the length of a test run. No kubelet, no controllers.

    with TestCluster() as cluster:
        cluster.apply_crd(CRDS)
        cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": "a"}})

Tokens: `admin_token` may do everything; `token(user)` is a user without any right, for RBAC tests.
Stopped with SIGKILL: with a watch open, the API server takes a minute to end on SIGTERM.
Both processes die with this one (Linux), and so does the folder they write to.
"""

import datetime
import http.client
import ipaddress
import json
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from picker.lab.child import dying_with_us
from tests.kube.binaries import ETCD, KUBE_APISERVER
from tests.ports import free_ports

CRDS = Path(__file__).parent / "crds"
START_SECONDS_MAX = 60.0
USERS = ("picker", "reader", "other")


class ApiFailure(RuntimeError):
    """An HTTP status of 400 or more."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"HTTP {status}: {body.get('message') if isinstance(body, dict) else body!r}")
        self.status = status
        self.body = body


class TestCluster:
    """One API server with its etcd."""

    __test__ = False  # not for pytest to collect

    def __init__(self, *, flags: Iterable[str] = ()) -> None:
        """`flags`: more of the API server's. Raises `Missing` or `NotMade`."""
        self._api_binary, self._etcd_binary = KUBE_APISERVER.look("kube-apiserver"), ETCD.look("etcd")
        self.folder = Path(tempfile.mkdtemp(prefix="picker-cluster-"))
        self._etcd_port, self._peer_port, self.port = free_ports(3)
        self.url = f"https://127.0.0.1:{self.port}"
        self.ca_file = self.folder / "ca.crt"
        self.admin_token = "admin-token"
        self._flags = list(flags)
        # Children die with the *thread* that started them, so that thread must live as long as the cluster.
        self._starter = ThreadPoolExecutor(max_workers=1)
        self._etcd: subprocess.Popen[bytes] | None = None
        self._api: subprocess.Popen[bytes] | None = None
        self._write_files()
        self._tls = ssl.create_default_context(cafile=str(self.ca_file))
        try:
            self._start_etcd()
            self.start_api_server()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def token(self, user: str) -> str:
        """The bearer token of one of `USERS`."""
        assert user in USERS
        return f"{user}-token"

    # Processes

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._etcd = self._spawn(
            "etcd",
            [
                *(str(self._etcd_binary), "--data-dir", str(self.folder / "etcd")),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"default={peer}", "--log-level", "warn", "--unsafe-no-fsync"),
            ],
        )

    def start_api_server(self) -> None:
        """Start it (again) on the same etcd and port; returns when it is ready."""
        assert self._api is None
        self._api = self._spawn(
            "apiserver",
            [
                str(self._api_binary),
                f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                f"--secure-port={self.port}",
                f"--tls-cert-file={self.folder / 'tls.crt'}",
                f"--tls-private-key-file={self.folder / 'tls.key'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-signing-key-file={self.folder / 'sa.key'}",
                f"--service-account-key-file={self.folder / 'sa.key'}",
                f"--token-auth-file={self.folder / 'tokens.csv'}",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.0.0.0/24",
                "--disable-admission-plugins=ServiceAccount",
                "--endpoint-reconciler-type=none",
                *self._flags,
            ],
        )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._ready():
            if self._api.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the API server did not start: {self.log_tail()}")
            time.sleep(0.1)

    def kill_api_server(self) -> None:
        """As a crash: every connection breaks, etcd keeps the state."""
        _kill(self._api)
        self._api = None

    def restart_api_server(self) -> None:
        """Kill it and start it again: watches from before the newest change are then 410."""
        self.kill_api_server()
        self.start_api_server()

    def stop(self) -> None:
        """End both processes and delete their folder."""
        self.kill_api_server()
        _kill(self._etcd)
        self._etcd = None
        self._starter.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log_tail(self) -> str:
        """The last words of the API server."""
        return (self.folder / "apiserver.log").read_text(errors="replace")[-2000:]

    def _spawn(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        def start() -> subprocess.Popen[bytes]:
            with (self.folder / f"{name}.log").open("ab") as log:
                return subprocess.Popen(
                    dying_with_us(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
                )

        return self._starter.submit(start).result()

    def _ready(self) -> bool:
        try:
            self.request("GET", "/readyz", raw=True)
        except (OSError, http.client.HTTPException, ApiFailure):
            return False
        return True

    # Requests

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        token: str | None = None,
        raw: bool = False,
    ) -> Any:
        """The decoded JSON answer (text with `raw`). Raises `ApiFailure` from status 400 on."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self._tls, timeout=30)
        try:
            headers = {"Authorization": f"Bearer {token or self.admin_token}", "Content-Type": content_type}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        try:
            answer = text if raw else json.loads(text)
        except json.JSONDecodeError:
            answer = text
        if response.status >= 400:
            raise ApiFailure(response.status, answer)
        return answer

    def apply_crd(self, path: Path) -> None:
        """Create the CustomResourceDefinitions of a YAML file and wait until they are served."""
        base = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for crd in yaml.safe_load_all(path.read_text()):
            name = crd["metadata"]["name"]
            self.request("POST", base, crd)
            deadline = time.monotonic() + 20
            while not _is_established(self.request("GET", f"{base}/{name}")):
                assert time.monotonic() < deadline, f"{name} was not established"
                time.sleep(0.05)

    def service_account_token(self, namespace: str, name: str, seconds: int = 3600) -> str:
        """A real token of an existing service account (TokenRequest)."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        return str(self.request("POST", path, {"spec": {"expirationSeconds": seconds}})["status"]["token"])

    def kubeconfig(self, path: Path, token: str | None = None, namespace: str = "default") -> Path:
        """Write a kubeconfig for `token` (the administrator's by default); returns `path`."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca_file)}}],
            "users": [{"name": "test", "user": {"token": token or self.admin_token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    # Files

    def _write_files(self) -> None:
        lines = ['admin-token,admin,1,"system:masters"']
        lines += [f"{self.token(user)},{user},{number}" for number, user in enumerate(USERS, 2)]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        ca_key, ca = write_ca(self.folder)
        write_server_certificate(self.folder, ca_key, ca)
        _write_key(self.folder / "sa.key", ec.generate_private_key(ec.SECP256R1()))


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait()


def _is_established(crd: dict[str, Any]) -> bool:
    conditions = crd.get("status", {}).get("conditions")
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions or ())


def write_ca(folder: Path, name: str = "test-ca") -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A new CA; its certificate is `folder/ca.crt`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = _builder(subject, subject, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return key, certificate


def write_server_certificate(folder: Path, ca_key: ec.EllipticCurvePrivateKey, ca: x509.Certificate) -> None:
    """`folder/tls.crt` and `tls.key` for 127.0.0.1 and localhost, signed by the CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    ca_identifier = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = _builder(subject, ca.subject, key.public_key())
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_identifier), critical=False
    )
    (folder / "tls.crt").write_bytes(builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    _write_key(folder / "tls.key", key)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=2))
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
