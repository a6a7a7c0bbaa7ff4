"""What the chart holds of things defined elsewhere. Run this module to write it anew.

* `config` in values.schema.json: the picker's configuration file, from its own types, so that helm refuses an
  unknown key before a pod runs.
* templates/_defaults.tpl: values.yaml as helm reads it, for `null`. Helm takes `image: null` for "delete the default",
  and every template that reads `.Values.image.tag` would die of it; `picker.fill` puts the default back.
* files/alerts.yaml: the alerting rules, for a PrometheusRule. A chart reads nothing outside of itself.
"""

import json
from typing import Any

import yaml

from picker.config import schema as configuration
from tests.deploy.tools import CHART, REPOSITORY

SCHEMA = CHART / "values.schema.json"
DEFAULTS = CHART / "templates" / "_defaults.tpl"
ALERTS = CHART / "files" / "alerts.yaml"


def schema() -> str:
    """values.schema.json, with today's configuration in it."""
    whole = json.loads(SCHEMA.read_text())
    whole["properties"]["config"] = configuration.schema()
    return json.dumps(whole, indent=2) + "\n"


def defaults() -> str:
    """_defaults.tpl: closed tables whole; open ones (labels, resources, config) empty: null is none of them."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    text = json.dumps(_closed(values, json.loads(SCHEMA.read_text())), indent=1)
    return (
        "{{/* values.yaml for `picker.fill`, which says why. Written by `python -m tests.deploy.generated`. */}}\n"
        f'{{{{- define "picker.defaults" -}}}}\n{text}\n{{{{- end -}}}}\n'
    )


def alerts() -> str:
    """deploy/alerts/picker.yaml without its head, which is about other ways of loading it."""
    text = (REPOSITORY / "deploy" / "alerts" / "picker.yaml").read_text()
    return (
        "# Written by `python -m tests.deploy.generated` from deploy/alerts/picker.yaml.\n"
        + text[text.index("groups:") :]
    )


def _closed(value: Any, node: dict[str, Any]) -> Any:
    if not isinstance(value, dict):
        return value
    if "properties" not in node or node.get("additionalProperties") is not False:
        return {}
    inner = {key: _closed(each, node["properties"][key]) for key, each in value.items() if key != "config"}
    return inner | ({"config": {}} if "config" in value else {})


if __name__ == "__main__":
    SCHEMA.write_text(schema())
    DEFAULTS.write_text(defaults())
    ALERTS.parent.mkdir(exist_ok=True)
    ALERTS.write_text(alerts())
