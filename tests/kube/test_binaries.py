"""Where neither Go nor ready binaries are, the words say how to get them."""

import shutil
from pathlib import Path

import pytest

from tests.kube import binaries


def test_without_go_and_without_assets_it_says_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(binaries, "BIN", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(binaries.Missing, match=r"needs Go .* or KUBEBUILDER_ASSETS"):
        binaries.binary("etcd")


def test_assets_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(binaries.Missing, match="has no etcd"):
        binaries.binary("etcd")
    (tmp_path / "etcd").touch()
    assert binaries.binary("etcd") == tmp_path / "etcd"
