"""The plain manifests are what the chart renders today, and the README lists them all."""

from pathlib import Path

import pytest

from tests.deploy.examples import EXAMPLES, folders, manifests
from tests.deploy.tools import objects


@pytest.mark.usefixtures("helm")
@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_manifests_are_as_rendered(folder: Path) -> None:
    written = (folder / "manifests.yaml").read_text()
    assert written == manifests(folder), "stale: run `.venv/bin/python -m tests.deploy.examples`"
    assert objects(written)


def test_the_readme_lists_every_folder() -> None:
    text = (EXAMPLES / "README.md").read_text()
    assert [f.name for f in folders() if f"`{f.name}`" not in text] == []
