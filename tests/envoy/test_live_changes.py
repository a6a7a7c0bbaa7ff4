"""Weights changed on the running picker, under load: nothing is lost and no prefix is forgotten."""

import json
import threading
import urllib.request
from pathlib import Path

from tests.envoy.clients import post
from tests.envoy.lab import CHAT, Lab
from tests.envoy.picker_process import wait_until
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


def replace(path: Path, text: str) -> None:
    """As a ConfigMap changes: another file takes the name."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


def decisions(address: str, count: int) -> list[dict]:
    """The last picks, newest first."""
    with urllib.request.urlopen(f"http://{address}/debug/decisions?count={count}", timeout=10) as page:
        return json.load(page)["decisions"]
