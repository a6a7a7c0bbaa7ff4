"""Weights changed on the running picker, under load: nothing is lost and no prefix is forgotten."""

import json
import os
import signal
import socket
import ssl
import threading
import urllib.request
from pathlib import Path

from picker import recording
from picker.edge.grpc.tls import self_signed
from tests.envoy.clients import post
from tests.envoy.lab import CHAT, Lab
from tests.envoy.picker_process import PickerProcess, wait_until
from tests.envoy.test_operations import started

RELOADS = "picker_config_reloads_total"


def conversation(number: int) -> bytes:
    """8 KB that no other conversation shares."""
    text = f"conversation {number}: " + f"{number:04d} " * 1600
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 4}).encode()


def test_weights_change_under_load_without_a_lost_request_or_a_forgotten_prefix(lab: Lab) -> None:
    weights = "epsilon: 0\nweights: {{prefix: 3, queue: {}, kv: 2}}\n".format
    with started(lab, weights(3)) as (picker, envoy):
        bodies = [conversation(number) for number in range(12)]
        assert {post(envoy.port, CHAT, body).status for body in bodies} == {200}
        homes = [pick["addresses"] for pick in decisions(picker.metrics_address, len(bodies))]
        statuses: list[int] = []
        stop = threading.Event()

        def load() -> None:
            while not stop.is_set():
                statuses.extend(post(envoy.port, CHAT, body).status for body in bodies[:3])

        threads = [threading.Thread(target=load) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for round_number, queue in enumerate((5, 3, 5), 1):
                replace(picker.config_path, weights(queue))
                wait_until(lambda n=round_number: picker.metric(RELOADS, result="success") == n, "not reloaded")
            picker.config_path.write_text("weights: {queue: many}\n")
            wait_until(lambda: picker.metric(RELOADS, result="failure") == 1, "a bad file went unnoticed")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert set(statuses) == {200} and len(statuses) > 30
        assert {post(envoy.port, CHAT, body).status for body in bodies} == {200}
        picks = decisions(picker.metrics_address, len(bodies))
        assert [pick["addresses"] for pick in picks] == homes and len(homes) == len(bodies)
        assert {pick["reason"] for pick in picks} == {"affinity"}, "with the weights of the last good file"
        wait_until(lambda: picker.in_flight() == 0, "in flight")


def test_certificate_files_replaced_on_disk_are_shown_to_the_next_client(tmp_path: Path) -> None:
    """A bad pair in between (a key that does not fit yet) keeps the old one."""
    chain, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def write(certificate) -> None:
        chain.write_bytes(certificate.chain_pem)
        key.write_bytes(certificate.key_pem)

    first, second = self_signed(), self_signed()
    write(first)
    config = f"tls: {{certificate_file: {chain}, key_file: {key}}}"
    with PickerProcess(["127.0.0.1:1"], config, insecure=False) as picker:
        assert shown(picker.grpc_address) == (der(first), "h2")
        chain.write_bytes(second.chain_pem)
        wait_until(lambda: "certificate files not usable, the last good ones stay" in picker.log(), "not noticed")
        assert shown(picker.grpc_address) == (der(first), "h2")
        write(second)
        wait_until(lambda: shown(picker.grpc_address) == (der(second), "h2"), "the old certificate is still shown")


def test_a_mounted_config_map_that_swaps_its_link_and_sighup_are_reloads(tmp_path: Path) -> None:
    """The layout of a mounted ConfigMap: `config.yaml -> ..data/config.yaml`, `..data -> ..<time>`."""
    for name, epsilon in (("..1", 0.1), ("..2", 0.2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(f"epsilon: {epsilon}")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
    with PickerProcess(["127.0.0.1:1"], flags=["--config", str(tmp_path / "config.yaml")]) as picker:
        (tmp_path / "..next").symlink_to("..2")
        os.replace(tmp_path / "..next", tmp_path / "..data")
        wait_until(lambda: picker.metric(RELOADS, result="success") == 1, "the swap went unnoticed")
        (tmp_path / "..2" / "config.yaml").write_text("epsilonn: 1")
        picker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "unknown key epsilonn: did you mean epsilon?" in picker.log(), "SIGHUP was not heard")
        assert picker.metric(RELOADS, result="failure") == 1


def test_a_recording_has_the_requests_that_ended_and_nothing_of_their_text(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "traffic.jsonl"
    with started(lab, flags=["--record", str(file)]) as (picker, envoy):
        for number in (1, 1, 2):
            assert post(envoy.port, CHAT, conversation(number)).status == 200
        wait_until(lambda: picker.ended() == 3, "requests still run")
        picker.process.send_signal(signal.SIGINT)
        assert picker.process.wait(10) == 0
    entries = list(recording.read(file))
    assert [(entry.outcome, entry.status) for entry in entries] == [("completed", 200)] * 3
    blocks = [list(entry.hashes()) for entry in entries]
    assert len(blocks[0]) == 7, "whole blocks of 1,024 bytes in some 8,000"
    assert blocks[0] == blocks[1] and not set(blocks[0]) & set(blocks[2])
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    assert b"conversation" not in file.read_bytes() and b"0001" not in file.read_bytes()


def der(certificate) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.chain_pem.decode())


def shown(address: str) -> tuple[bytes | None, str | None]:
    """The certificate that a new client sees, and the protocol that ALPN agreed on."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as plain, context.wrap_socket(plain) as secured:
        return secured.getpeercert(binary_form=True), secured.selected_alpn_protocol()


def replace(path: Path, text: str) -> None:
    """As a ConfigMap changes: another file takes the name."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


def decisions(address: str, count: int) -> list[dict]:
    """The last picks, newest first."""
    with urllib.request.urlopen(f"http://{address}/debug/decisions?count={count}", timeout=10) as page:
        return json.load(page)["decisions"]
