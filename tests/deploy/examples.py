"""deploy/examples: rendered from each folder's values.yaml. Run this module to write them anew.

They name no namespace, so kubectl puts them into its current one. A ClusterRoleBinding alone must name one:
`NAMESPACE`, and the README beside them says how to replace it.
"""

import re
from pathlib import Path

import yaml

from tests.deploy.tools import REPOSITORY, render_text

EXAMPLES = REPOSITORY / "deploy" / "examples"
HELMS_OWN = ("helm.sh/chart:", "app.kubernetes.io/managed-by:")
"""Labels that are untrue of an object that was not installed by Helm."""
NAMESPACE = "default"
"""Where objects outside of namespaces say that the others are; quoted wherever it stands."""


def folders() -> list[Path]:
    """Every example."""
    return sorted(path.parent for path in EXAMPLES.glob("*/values.yaml"))


def manifests(folder: Path) -> str:
    """What `manifests.yaml` should hold."""
    values_text = (folder / "values.yaml").read_text()
    comment = values_text.splitlines()[0]
    text = render_text(yaml.safe_load(values_text), release="llm", namespace=NAMESPACE, flags=("--no-hooks",))
    body = "\n---\n".join(_anywhere(each.strip("\n")) for each in re.split(r"^---\n", text, flags=re.MULTILINE) if each)
    origin = "# Rendered from deploy/chart with values.yaml beside it; python -m tests.deploy.examples."
    return f"{comment}\n{origin}\n{body}\n"


def _anywhere(document: str) -> str:
    """An object for the namespace that kubectl is told: without its own, and with short names of Services."""
    kind = re.search(r"^kind: (\w+)$", document, re.MULTILINE)
    assert kind is not None, document
    lines = [line.rstrip() for line in document.splitlines() if not line.strip().startswith(HELMS_OWN)]
    if kind[1] != "ClusterRoleBinding":  # a RoleBinding's subjects are of its own namespace unless they name one
        lines = [line for line in lines if line.strip() != f'namespace: "{NAMESPACE}"']
    return "\n".join(lines).replace(f".{NAMESPACE}.svc.cluster.local", "")


if __name__ == "__main__":
    for example in folders():
        (example / "manifests.yaml").write_text(manifests(example))
