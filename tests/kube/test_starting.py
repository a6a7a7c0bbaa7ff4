"""`picker serve` where no cluster can be had, or the flags contradict each other: one line, and an exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
PORTS = ("--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0")


def serve(*flags: str, kubeconfig: Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a picker that should not stay."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("KUBERNETES_SERVICE")}
    done = subprocess.run(
        [sys.executable, "-m", "picker", "serve", *PORTS, *flags],
        env=environ | {"KUBECONFIG": str(kubeconfig), "HOME": str(kubeconfig.parent)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    lines = done.stderr.splitlines(keepends=True)
    return done.returncode, done.stdout, "".join(line for line in lines if not line.startswith("{"))  # less the log


def test_no_cluster_configuration_is_one_line_with_the_next_step(tmp_path: Path) -> None:
    code, output, error = serve("--pool", "p", kubeconfig=tmp_path / "none")
    assert (code, output) == (1, "")
    assert error.startswith(f"picker: no cluster configuration: {tmp_path / 'none'} does not exist")
    assert "set KUBECONFIG, or name the model servers with --endpoints" in error
    assert error.count("\n") == 1


def test_an_exec_plugin_that_fails_is_one_line_that_names_the_file(tmp_path: Path) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false", "interactiveMode": "Never"}
    config = {
        "current-context": "t",
        "clusters": [{"name": "t", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "t", "user": {"exec": plugin}}],
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    code, output, error = serve("--pool", "p", kubeconfig=path)
    assert (code, output) == (1, "")
    assert str(path) in error.splitlines()[-1]
    assert "exec plugin gave no credentials" in error.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--endpoints", "127.0.0.1:1", "--leader-election"), 1, "--leader-election needs --pool or --selector"),
        (("--pool", "p", "--leader-election", "--active-active"), 2, "not allowed with argument --leader-election"),
        (("--selector", "app=x"), 1, "--selector needs --target-port"),
        (("--pool", "p", "--selector", "app=x"), 1, "give one of --endpoints, --endpoints-file, --pool, --selector"),
    ],
)
def test_flags_that_do_not_go_together(tmp_path: Path, flags: tuple[str, ...], code: int, words: str) -> None:
    found, _, error = serve(*flags, kubeconfig=tmp_path / "none")
    assert found == code
    assert words in error
