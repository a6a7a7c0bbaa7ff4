"""The chart's standalone Envoy as a process of this machine: its rendered bootstrap, other ports."""

from pathlib import Path
from typing import Any

import yaml

from tests.deploy.tools import Objects, render
from tests.deploy.values import BASE, Values, merged


def bootstrap(values: Values) -> dict[str, Any]:
    """The bootstrap that the chart renders for these values."""
    found: Objects = render(merged(BASE, values))
    texts = [o["data"]["envoy.yaml"] for o in found if o["kind"] == "ConfigMap" and "envoy.yaml" in o["data"]]
    assert len(texts) == 1
    return dict(yaml.safe_load(texts[0]))


def on_this_machine(config: dict[str, Any], picker: str, pressure_file: Path | None = None) -> dict[str, Any]:
    """The same with free loopback ports, and `picker` (host:port) in place of the pod's own or the peers' name."""
    host, _, port = picker.rpartition(":")
    if pressure_file is not None:
        for monitor in config["overload_manager"]["resource_monitors"]:
            if "filename" in monitor["typed_config"]:
                monitor["typed_config"]["filename"] = str(pressure_file)
    config["admin"]["address"]["socket_address"]["port_value"] = 0
    for listener in config["static_resources"]["listeners"]:
        listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    for cluster in config["static_resources"]["clusters"]:
        if cluster["name"] == "picker":
            endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
            endpoint["address"]["socket_address"] = {"address": host, "port_value": int(port)}
    return config
