"""What is in the image: a CycloneDX 1.6 document of the Python packages installed beside this interpreter.

    /opt/picker/bin/python sbom.py > /opt/picker/sbom.cdx.json      # the Dockerfile's last step

Read from what was installed, not from the lock, so it cannot differ from what runs. The same packages give the same
bytes: no time, and a serial number made of the contents. The base image's own packages are not in it (scan the image
for those). Standard library only.
"""

import hashlib
import importlib.metadata
import json
import re
import sys
import uuid
from typing import Any

PICKER = "inference-picker"


def canonical(name: str) -> str:
    """PEP 503, as package URLs of PyPI want it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def component(found: importlib.metadata.Distribution) -> dict[str, Any]:
    """One package."""
    name, version = canonical(found.metadata["Name"]), found.version
    reference = f"pkg:pypi/{name}@{version}"
    kind = "application" if name == PICKER else "library"
    entry = {"type": kind, "bom-ref": reference, "name": name, "version": version, "purl": reference}
    if "License-Expression" not in found.metadata:
        return entry
    return entry | {"licenses": [{"expression": found.metadata["License-Expression"]}]}


def needs(found: importlib.metadata.Distribution, versions: dict[str, str]) -> list[str]:
    """References of what it requires and finds here; what only an extra asks for counts where it is installed."""
    names = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in found.requires or ())
    wanted = {canonical(name.group()) for name in names if name}
    return [f"pkg:pypi/{name}@{versions[name]}" for name in sorted(wanted & versions.keys())]


def document() -> dict[str, Any]:
    """The whole."""
    packages = {canonical(each.metadata["Name"]): each for each in importlib.metadata.distributions()}
    versions = {name: each.version for name, each in packages.items()}
    components = [component(packages[name]) for name in sorted(packages)]
    python = {
        "type": "platform",
        "bom-ref": "python",
        "name": sys.implementation.name,
        "version": sys.version.split()[0],
    }
    found: dict[str, Any] = {
        "metadata": {"component": next((each for each in components if each["name"] == PICKER), python)},
        "components": [python, *(each for each in components if each["name"] != PICKER)],
        "dependencies": [
            {"ref": f"pkg:pypi/{name}@{versions[name]}", "dependsOn": needs(packages[name], versions)}
            for name in sorted(packages)
        ],
    }
    digest = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).digest()
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
    return {**head, "serialNumber": f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=4)}", **found}


if __name__ == "__main__":
    json.dump(document(), sys.stdout, indent=1)
    print()
