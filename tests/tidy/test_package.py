"""What is shipped: the licence in both archives, and only the project's own pages in the source one."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    environment = {**os.environ, "PICKER_PURE": "1"}
    environment.pop("PICKER_COMPILED", None)
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=100)
    return folder


def test_the_wheel_carries_the_licence(archives):
    (path,) = archives.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        (name,) = [each for each in wheel.namelist() if each.endswith("licenses/LICENSE")]
        assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()
        (metadata,) = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")]
        assert b"License-Expression: Apache-2.0" in wheel.read(metadata)


def test_both_archives_carry_the_page(archives):
    folder = "picker/edge/telemetry/live/assets"
    assets = {f"{folder}/{path.name}" for path in (ROOT / folder).iterdir()}
    assert {f"{folder}/index.html", f"{folder}/page.js", f"{folder}/page.css"} <= assets
    (path,) = archives.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        assert assets <= set(wheel.namelist())
    (path,) = archives.glob("*.tar.gz")
    with tarfile.open(path) as source:
        assert assets <= {name.partition("/")[2] for name in source.getnames()}


def test_the_source_archive_carries_the_licence_and_no_strangers(archives):
    (path,) = archives.glob("*.tar.gz")
    with tarfile.open(path) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "picker/__init__.py"} <= names
    assert {name.partition("/")[0] for name in names} <= {
        *("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "PKG-INFO", ".gitignore"),
        *("picker", "protos", "hatch_build.py"),
    }


def test_the_image_ships_it_too():
    assert "!LICENSE" in (ROOT / ".dockerignore").read_text().splitlines()
    assert "COPY README.md LICENSE hatch_build.py ./" in (ROOT / "Dockerfile").read_text()
