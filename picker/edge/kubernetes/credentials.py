"""Where the API server is and who we are: in-cluster, kubeconfig or exec plugin, and what rotates.

Loading is the `kubernetes` package's (`kubernetes.aio.config`); this module decides which way to
load, and notices when the files behind it change (a service account's token is rewritten every
hour or so, a CA less often). `kubernetes` is imported when first used: it costs a second.
"""

import asyncio
import importlib
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment

import msgspec
import yaml

from picker.config import MISSPOKEN_YAML
from picker.files.followed_file import FileProblem, read_regular

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

LOAD_SECONDS = 30.0
FILE_BYTES_MAX = 1024 * 1024

_FILE_KEYS = ("tokenFile", "certificate-authority", "client-certificate", "client-key")


class CredentialsError(Exception):
    """No usable configuration. The text names the file or variable and the next step."""


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """How to find the API server.

    `kubeconfig` wins when given; else the service account of the pod we run in; else
    `$KUBECONFIG` or `~/.kube/config`.
    """

    kubeconfig: str | None = None
    context: str | None = None
    service_account: Path = SERVICE_ACCOUNT
    environ: Mapping[str, str] = msgspec.field(default_factory=lambda: os.environ)

    @property
    def in_cluster(self) -> bool:
        """Run with the pod's service account."""
        return (
            self.kubeconfig is None
            and bool(self.environ.get("KUBERNETES_SERVICE_HOST"))
            and (self.service_account / "token").exists()
        )

    @property
    def kubeconfig_path(self) -> str:
        """One path or several, as in $KUBECONFIG."""
        return self.kubeconfig or self.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())

    def default_namespace(self) -> str:
        """The pod's own, or the current context's; `default` where neither names one. A file that cannot be
        read is for `load` to explain."""
        if self.in_cluster:
            try:
                return _text(self.service_account / "namespace").strip() or "default"
            except (FileProblem, UnicodeError):
                return "default"
        contexts: dict[str, Any] = {}
        current = self.context
        for path in filter(None, self.kubeconfig_path.split(os.pathsep)):
            found = _read_contexts(Path(path))
            contexts = {**found[1], **contexts}  # as kubectl merges files: the first to set a value wins
            current = current or found[0]
        namespace = contexts.get(current) if current is not None else None
        return namespace if isinstance(namespace, str) and namespace else "default"

    def files(self) -> list[Path]:
        """Every file whose change means that the configuration is to be read again."""
        if self.in_cluster:
            return [self.service_account / "token", self.service_account / "ca.crt"]
        found: list[Path] = []
        for path in map(Path, filter(None, self.kubeconfig_path.split(os.pathsep))):
            found.append(path)
            try:
                _collect_files(yaml.safe_load(_text(path)), path.parent, found)
            except (FileProblem, yaml.YAMLError, RecursionError, *MISSPOKEN_YAML):
                continue
        return found

    def fingerprint(self, files: list[Path]) -> tuple[tuple[int, int, int] | None, ...]:
        """Differs after any of the files was rewritten, replaced or re-linked."""
        return tuple(_stamp(path) for path in files)

    async def load(self) -> Any:
        """A `kubernetes.aio.client.Configuration`. Raises `CredentialsError`."""
        # A second of importing: in a thread, so that the loop goes on meanwhile.
        await asyncio.to_thread(importlib.import_module, "kubernetes.aio.config")
        from kubernetes.aio.client import Configuration
        from kubernetes.aio.config import ConfigException

        configuration = Configuration()
        try:
            await asyncio.to_thread(lambda: _check_files(self.files()))
            if self.in_cluster:
                self._load_in_cluster(configuration)
            else:
                async with asyncio.timeout(LOAD_SECONDS):
                    await self._load_kubeconfig(configuration)
        except TimeoutError as error:
            raise CredentialsError(
                f"{self.kubeconfig_path}: the exec plugin did not answer within {LOAD_SECONDS:.0f} s"
            ) from error
        except (
            ConfigException,
            FileProblem,
            OSError,
            UnicodeError,
            ValueError,
            TypeError,
            AttributeError,
            yaml.YAMLError,
        ) as error:
            where = str(self.service_account) if self.in_cluster else self.kubeconfig_path
            raise CredentialsError(f"cannot use {where}: {error}") from error
        # Go's TLS, which every other Kubernetes client is built on, does not insist on RFC 5280 to the letter;
        # clusters exist whose CA lacks a key identifier.
        configuration.disable_strict_ssl_verification = True
        # aiohttp's own reading of NO_PROXY knows no CIDR, and API servers are often named by address.
        # A small buffer, so that a burst of events is worked through in short turns of the loop.
        configuration.client_session_kwargs = {"trust_env": False, "read_bufsize": 128 * 1024}
        return configuration

    def _load_in_cluster(self, configuration: Any) -> None:
        from kubernetes.aio.config.incluster_config import InClusterConfigLoader

        InClusterConfigLoader(
            token_filename=str(self.service_account / "token"),
            cert_filename=str(self.service_account / "ca.crt"),
            try_refresh_token=False,  # done here, for the CA file too
            environ=self.environ,
        ).load_and_set(configuration)

    async def _load_kubeconfig(self, configuration: Any) -> None:
        from kubernetes.aio.config import load_kube_config

        path = self.kubeconfig_path
        if not _any_exists(path):
            raise CredentialsError(
                f"no cluster configuration: {path} does not exist and this is no pod with a service account;"
                " set KUBECONFIG, or name the model servers with --endpoints or --endpoints-file"
            )
        loader = await load_kube_config(
            config_file=path, context=self.context, client_configuration=configuration, persist_config=False
        )
        user = getattr(loader, "_user", None)
        if user is not None and "exec" in user and not (configuration.api_key or configuration.cert_file):
            raise CredentialsError(f"{path}: the exec plugin gave no credentials; run it by hand to see why")
        if configuration.proxy is None:
            configuration.proxy = proxy_for(configuration.host, self.environ)


def _text(path: Path) -> str:
    """Raises `FileProblem`, `UnicodeError`."""
    return read_regular(path, bytes_max=FILE_BYTES_MAX).decode("utf-8")


def _check_files(paths: list[Path]) -> None:
    """Those that are there can be read without waiting for anybody. Raises `FileProblem`."""
    for path in paths:
        if path.exists():
            read_regular(path, bytes_max=FILE_BYTES_MAX)


def _any_exists(paths: str) -> bool:
    return any(Path(path).exists() for path in paths.split(os.pathsep) if path)


def _read_contexts(path: Path) -> tuple[str | None, dict[str, Any]]:
    """The name of the current context, and the namespace of each; nothing of a file that is none."""
    try:
        tree = yaml.safe_load(_text(path))
        return tree.get("current-context"), {
            each["name"]: each["context"].get("namespace") for each in tree.get("contexts") or ()
        }
    except (FileProblem, yaml.YAMLError, RecursionError, *MISSPOKEN_YAML):
        return None, {}


def _collect_files(node: Any, folder: Path, found: list[Path]) -> None:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in _FILE_KEYS and isinstance(value, str):
                found.append(folder / value)
            else:
                _collect_files(value, folder, found)
    elif isinstance(node, list):
        for value in node:
            _collect_files(value, folder, found)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy that HTTPS_PROXY / HTTP_PROXY name for `url`, unless NO_PROXY (names, suffixes, CIDR) excludes it."""
    split = urlsplit(url)
    host = split.hostname or ""
    proxies = getproxies_environment() if environ is os.environ else _proxies(environ)
    proxy = proxies.get(split.scheme)
    if not proxy or any(_covers(rule.strip(), host) for rule in proxies.get("no", "").split(",")):
        return None
    return proxy


def _proxies(environ: Mapping[str, str]) -> dict[str, str]:
    lowered = {name.lower(): value for name, value in environ.items()}
    return {scheme: lowered.get(f"{scheme}_proxy", "") for scheme in ("http", "https", "no")}


def _covers(rule: str, host: str) -> bool:
    if not rule:
        return False
    if rule == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(rule, strict=False)
    except ValueError:
        suffix = rule.lstrip("*").lstrip(".").lower()
        return host == suffix or host.endswith(f".{suffix}")
