"""The chart's standalone Envoy as a process of this machine: its rendered bootstrap, other ports."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import yaml

from picker.lab.envoy import EnvoyProcess
from tests.deploy.tools import Objects, render
from tests.deploy.values import BASE, Values, merged
from tests.envoy.lab import CHAT
from tests.envoy.picker_process import PickerProcess
from tests.ports import free_ports

PATIENCE_SECONDS = 40.0
"""For what comes after seconds: not a bound that is tested."""


def bootstrap(values: Values) -> dict[str, Any]:
    """The bootstrap that the chart renders for these values."""
    found: Objects = render(merged(BASE, values))
    texts = [o["data"]["envoy.yaml"] for o in found if o["kind"] == "ConfigMap" and "envoy.yaml" in o["data"]]
    assert len(texts) == 1
    return dict(yaml.safe_load(texts[0]))


def on_this_machine(
    config: dict[str, Any], picker: str, pressure_file: Path | None = None, *, admin_port: int = 0
) -> dict[str, Any]:
    """The same with free loopback ports, and `picker` (host:port) in place of the pod's own or the peers' name.

    Statistics pass from the admin port to clients only where `admin_port` names one.
    """
    host, _, port = picker.rpartition(":")
    if pressure_file is not None:
        for monitor in config["overload_manager"]["resource_monitors"]:
            if "filename" in monitor["typed_config"]:
                monitor["typed_config"]["filename"] = str(pressure_file)
    config["admin"]["address"]["socket_address"]["port_value"] = admin_port
    for listener in config["static_resources"]["listeners"]:
        listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    elsewhere = {"picker": (host, int(port)), "admin": ("127.0.0.1", admin_port)}
    for cluster in config["static_resources"]["clusters"]:
        if cluster["name"] in elsewhere:
            endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
            address, number = elsewhere[cluster["name"]]
            endpoint["address"]["socket_address"] = {"address": address, "port_value": number}
    return config


def listener_port(envoy: EnvoyProcess, name: str) -> int:
    """The port that Envoy chose for the listener of that name."""
    listeners = json.loads(envoy.admin("/listeners?format=json"))["listener_statuses"]
    (found,) = (each for each in listeners if each["name"] == name)
    return int(found["local_address"]["socket_address"]["port_value"])


def listener(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A listener of a bootstrap, by its name."""
    (found,) = (each for each in config["static_resources"]["listeners"] if each["name"] == name)
    return dict(found)


def manager(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The HTTP connection manager of that listener, to be read or changed."""
    found = listener(config, name)["filter_chains"][0]["filters"][0]["typed_config"]
    assert isinstance(found, dict)
    return found


def config_for(picker: PickerProcess, **standalone: object) -> dict[str, Any]:
    """The bootstrap for these values of `standalone`, before this picker and with statistics that can be scraped."""
    values: Values = {"standalone": {"enabled": True, **standalone}}
    return on_this_machine(bootstrap(values), picker.grpc_address, admin_port=free_ports(1)[0])


def envoy_for(picker: PickerProcess, **standalone: object) -> EnvoyProcess:
    """It runs, before this picker."""
    return EnvoyProcess(config_for(picker, **standalone))


def stat(envoy: EnvoyProcess, name: str) -> int:
    """One of Envoy's statistics."""
    return envoy.stats(f"^{re.escape(name)}$")[name]


def unfinished(envoy: EnvoyProcess, size: int, sent: int = 0) -> socket.socket:
    """A connection whose request has its headers and `sent` bytes of a body of `size`."""
    client = socket.create_connection(("127.0.0.1", envoy.port), timeout=PATIENCE_SECONDS)
    client.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode() + b" " * sent)
    return client
