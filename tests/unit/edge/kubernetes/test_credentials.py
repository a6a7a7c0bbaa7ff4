"""Which cluster configuration is used, what is watched for rotation, which proxy applies, and errors that help."""

import asyncio
import os
from pathlib import Path

import pytest
import yaml

from picker.edge.kubernetes import credentials as kubernetes_credentials
from picker.edge.kubernetes.api import KubernetesApi
from picker.edge.kubernetes.credentials import Credentials, CredentialsError, proxy_for
from picker.edge.kubernetes.source import label_selector, parse_label_selector

IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("abc\n")
    (folder / "ca.crt").write_text("not looked into here")
    return folder


def test_in_a_pod_the_service_account_is_used(account: Path) -> None:
    credentials = Credentials(service_account=account, environ=IN_CLUSTER)
    assert credentials.in_cluster
    configuration = asyncio.run(credentials.load())
    assert configuration.host == "https://10.0.0.1:443"
    assert configuration.ssl_ca_cert == str(account / "ca.crt")


def test_an_ipv6_api_server_is_bracketed(account: Path) -> None:
    environ = IN_CLUSTER | {"KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert asyncio.run(Credentials(service_account=account, environ=environ).load()).host == "https://[fd00::1]:443"


def test_a_kubeconfig_that_is_given_wins_over_the_pod(account: Path) -> None:
    assert not Credentials(kubeconfig="x", service_account=account, environ=IN_CLUSTER).in_cluster


def test_outside_a_pod_kubeconfig_is_used(account: Path) -> None:
    assert not Credentials(service_account=account, environ={"KUBECONFIG": "x"}).in_cluster
    assert Credentials(environ={"KUBECONFIG": "x"}).kubeconfig_path == "x"
    assert Credentials(environ={}).kubeconfig_path.endswith(".kube/config")


def test_nothing_at_all_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="set KUBECONFIG, or name the model servers with --endpoints"):
        asyncio.run(Credentials(environ={"KUBECONFIG": str(tmp_path / "none")}).load())


def test_at_the_start_unusable_credentials_are_an_error_and_not_an_outage(tmp_path: Path) -> None:
    async def start() -> None:
        async with KubernetesApi(Credentials(environ={"KUBECONFIG": str(tmp_path / "none")})) as api:
            await api.open()

    with pytest.raises(CredentialsError, match="none does not exist and this is no pod"):
        asyncio.run(start())


def test_the_namespace_is_the_pods_own_or_the_current_contexts(account: Path, tmp_path: Path) -> None:
    in_pod = Credentials(service_account=account, environ=IN_CLUSTER)
    assert in_pod.default_namespace() == "default"
    (account / "namespace").write_text("models\n")
    assert in_pod.default_namespace() == "models"
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(yaml.safe_dump({"current-context": "b", "contexts": [{"name": "a", "context": {}}]}))
    contexts = [{"name": "a", "context": {"namespace": "x"}}, {"name": "b", "context": {"namespace": "y"}}]
    second.write_text(yaml.safe_dump({"current-context": "a", "contexts": contexts}))
    both = f"{first}{os.pathsep}{second}"
    assert Credentials(environ={"KUBECONFIG": both}).default_namespace() == "y"
    assert Credentials(environ={"KUBECONFIG": both}, context="a").default_namespace() == "default"
    assert Credentials(environ={"KUBECONFIG": str(second)}).default_namespace() == "x"


@pytest.mark.parametrize("text", ["{", "[]", "", "contexts: [1]\ncurrent-context: x", "contexts: {}\n"])
def test_a_namespace_that_cannot_be_read_is_default(tmp_path: Path, text: str) -> None:
    (tmp_path / "kubeconfig").write_text(text)
    assert Credentials(kubeconfig=str(tmp_path / "kubeconfig")).default_namespace() == "default"
    assert Credentials(kubeconfig=str(tmp_path / "none")).default_namespace() == "default"


@pytest.mark.parametrize("text", ["{", "[]", "", "current-context: x\ncontexts: []\n", "a: \x00"])
def test_a_bad_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(CredentialsError, match=str(path)):
        asyncio.run(Credentials(kubeconfig=str(path)).load())


def _with_user(path: Path, user: dict[str, object]) -> Credentials:
    config = {
        "current-context": "t",
        "clusters": [{"name": "t", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "t", "user": user}],
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
    }
    path.write_text(yaml.safe_dump(config))
    return Credentials(kubeconfig=str(path), environ={})


@pytest.mark.parametrize("command", ["false", "echo", "/no/such/plugin"])
def test_an_exec_plugin_that_gives_nothing_is_an_error_and_not_an_anonymous_request(
    tmp_path: Path, command: str
) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": command}
    with pytest.raises(CredentialsError, match="exec plugin gave no credentials"):
        asyncio.run(_with_user(tmp_path / "kubeconfig", {"exec": plugin}).load())


def test_an_exec_plugin_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_credentials, "LOAD_SECONDS", 0.2)
    marker = tmp_path / "fifo"
    os.mkfifo(marker)  # reading it blocks until somebody writes
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": [str(marker)]}

    async def attempt() -> None:
        with pytest.raises(CredentialsError, match="did not answer within"):
            await _with_user(tmp_path / "kubeconfig", {"exec": plugin}).load()
        await asyncio.to_thread(marker.write_text, "")  # lets the child end
        await asyncio.sleep(0.1)

    asyncio.run(attempt())


def test_every_file_behind_a_kubeconfig_is_watched(tmp_path: Path) -> None:
    credentials = _with_user(tmp_path / "kubeconfig", {"tokenFile": "token", "client-key": "/abs/key"})
    assert credentials.files() == [tmp_path / "kubeconfig", Path("/abs/key"), tmp_path / "token"]


def test_a_rewritten_a_replaced_and_a_missing_file_change_the_fingerprint(account: Path) -> None:
    credentials = Credentials(service_account=account, environ=IN_CLUSTER)
    seen = [credentials.fingerprint(credentials.files())]
    (account / "token").write_text("longer than before")
    seen.append(credentials.fingerprint(credentials.files()))
    # As the kubelet does it: another file under the same name.
    (account / "new").write_text("longer than before")
    os.replace(account / "new", account / "token")
    seen.append(credentials.fingerprint(credentials.files()))
    (account / "ca.crt").unlink()
    seen.append(credentials.fingerprint(credentials.files()))
    assert len(set(seen)) == 4


PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("url", "no_proxy", "proxy"),
    [
        ("https://10.1.2.3", "", PROXY),
        ("https://10.1.2.3", "10.0.0.0/8", None),
        ("https://10.1.2.3", "192.168.0.0/16, 10.1.2.3", None),
        ("https://11.1.2.3", "10.0.0.0/8", PROXY),
        ("https://[fd00::1]:6443", "fd00::/8", None),
        ("https://api.example.com", "example.com", None),
        ("https://api.example.com", ".example.com", None),
        ("https://api.example.com", "*.example.com", None),
        ("https://badexample.com", "example.com", PROXY),
        ("https://api.example.com", "*", None),
        ("http://api.example.com", "", None),
    ],
)
def test_no_proxy_knows_names_suffixes_and_networks(url: str, no_proxy: str, proxy: str | None) -> None:
    assert proxy_for(url, {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}) == proxy


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("app=vllm", {"app": "vllm"}),
        (" app = vllm , tier==gold ", {"app": "vllm", "tier": "gold"}),
        ("empty=", {"empty": ""}),
        ("example.com/app=vllm", {"example.com/app": "vllm"}),
    ],
)
def test_selector(text: str, labels: dict[str, str]) -> None:
    assert parse_label_selector(text) == labels
    assert parse_label_selector(label_selector(labels)) == labels


@pytest.mark.parametrize("text", ["", "app", "=x", "app!=x", "a=1,a=2", "a=1,,b=2", "app in (a)"])
def test_a_selector_that_is_not_equality_is_refused_with_its_part(text: str) -> None:
    with pytest.raises(ValueError, match="selector"):
        parse_label_selector(text)


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_a_named_pipe_in_place_of_a_file_is_an_error_and_blocks_nobody(account: Path, name: str) -> None:
    (account / name).unlink()
    os.mkfifo(account / name)
    with pytest.raises(CredentialsError, match="named pipe"):
        asyncio.run(Credentials(service_account=account, environ=IN_CLUSTER).load())


def test_a_kubeconfig_that_is_a_named_pipe_is_an_error_and_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config")
    credentials = Credentials(kubeconfig=str(tmp_path / "config"))
    assert credentials.default_namespace() == "default"
    with pytest.raises(CredentialsError, match="named pipe"):
        asyncio.run(credentials.load())
