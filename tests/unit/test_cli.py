"""The command line: exit codes, and one line that names what is wrong and the next step."""

import os
import socket

import pytest

from picker.cli import main

LOCAL = ["--insecure", "--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"]


@pytest.fixture(autouse=True)
def _logging_stays(monkeypatch):
    """`serve` sets up the process's logging; the tests' own is to survive."""
    monkeypatch.setattr("picker.edge.telemetry.logs.configure", lambda *_: None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("weights: {prefx: 3}", "unknown key weights.prefx: did you mean weights.prefix?"),
        ("a: [", "not valid YAML"),
        ("epsilon: 3", "epsilon: "),
        ("- 1", ""),
    ],
)
def test_check_of_a_bad_file(text, words, tmp_path, capsys):
    file = tmp_path / "picker.yaml"
    file.write_text(text)
    assert main(["check", str(file)]) == 1
    said = capsys.readouterr()
    assert not said.out
    assert said.err.startswith(f"picker: {file}: ")
    assert words in said.err
    assert said.err.count("\n") == 1


def test_check_of_a_file_that_is_none(tmp_path, capsys):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing", tmp_path / "binary", tmp_path):
        assert main(["check", str(path)]) == 1
        assert str(path) in capsys.readouterr().err


def test_check_warns_and_says_how_much_there_is_to_look_at(tmp_path, capsys):
    file = tmp_path / "picker.yaml"
    file.write_text("engine_metrics: {interval_seconds: 15}\nepsilon: 0.5")
    assert main(["check", str(file)]) == 0
    *warnings, last = capsys.readouterr().out.splitlines()
    assert len(warnings) == 2 and all(line.startswith("warning: ") for line in warnings)
    assert "engine_metrics.interval_seconds" in warnings[0] and "engine_metrics.stale_seconds" in warnings[0]
    assert last == f"{file}: usable, with 2 to look at"


def test_check_of_a_pipe_waits_for_nobody(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert main(["check", str(tmp_path / "pipe")]) == 1
    assert (
        capsys.readouterr().err == f"picker: cannot read {tmp_path / 'pipe'}: it is a named pipe; give a regular file\n"
    )


def test_check_of_a_good_file(tmp_path, capsys):
    file = tmp_path / "picker.yaml"
    file.write_text("weights: {prefix: 3, queue: 3, kv: 2}")
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: good\n"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "give one of --endpoints, --endpoints-file, --pool, --selector"),
        (["--endpoints", "10.0.0.1:1", "--pool", "p"], "give one of"),
        (["--endpoints", ""], "--endpoints names no endpoint"),
        (["--endpoints", "10.0.0.1"], "'10.0.0.1' is not host:port"),
        (["--endpoints-file", "missing.yaml"], "cannot read missing.yaml"),
        (["--endpoints", "10.0.0.1:1", "--config", "missing.yaml"], "cannot read missing.yaml"),
        (["--endpoints", "10.0.0.1:1", "--leader-election"], "--leader-election needs --pool or --selector"),
        (["--selector", "app=vllm"], "--selector needs --target-port"),
        (["--endpoints", "10.0.0.1:1", "--host", "127.0.0.300"], "cannot listen on 127.0.0.300:0: "),
    ],
)
def test_serve_that_cannot_start_says_why_in_one_line(flags, words, capsys):
    assert main(["serve", *LOCAL, *flags]) == 1
    said = capsys.readouterr()
    assert not said.out
    assert words in said.err
    assert "Unknown error" not in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("flag", ["--grpc-port", "--grpc-health-port", "--metrics-port"])
def test_a_port_in_use_is_said_with_the_flags_that_choose_another(flag, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", *LOCAL, "--endpoints", "127.0.0.1:1", flag, port]) == 1
    said = capsys.readouterr().err
    assert port in said
    assert flag in said


@pytest.mark.parametrize("arguments", [[], ["serve", "--grpc-port", "70000"], ["serve", "--endpoint", "a:1"], ["srve"]])
def test_wrong_usage_is_2(arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
