"""deploy/examples: rendered from each folder's values.yaml. Run this module to write them anew."""

from pathlib import Path

import yaml

from tests.deploy.tools import REPOSITORY, render_text

EXAMPLES = REPOSITORY / "deploy" / "examples"
HELMS_OWN = ("helm.sh/chart:", "app.kubernetes.io/managed-by:")
"""Labels that are untrue of an object that was not installed by Helm."""


def folders() -> list[Path]:
    """Every example."""
    return sorted(path.parent for path in EXAMPLES.glob("*/values.yaml"))


def manifests(folder: Path) -> str:
    """What `manifests.yaml` should hold."""
    values_text = (folder / "values.yaml").read_text()
    comment = values_text.splitlines()[0]
    text = render_text(yaml.safe_load(values_text), release="llm", namespace="default")
    lines = [line for line in text.splitlines() if not line.strip().startswith(HELMS_OWN)]
    body = "\n".join(line.rstrip() for line in lines).strip("\n")
    origin = "# Rendered from deploy/chart with values.yaml beside it; python -m tests.deploy.examples."
    return f"{comment}\n{origin}\n{body}\n"


if __name__ == "__main__":
    for example in folders():
        (example / "manifests.yaml").write_text(manifests(example))
