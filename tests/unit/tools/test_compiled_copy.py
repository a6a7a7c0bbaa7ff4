"""The copy that is compiled is compiled anew where something of it changed, and not otherwise."""

from pathlib import Path

import pytest

from tests import compiled_copy as module


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for name, text in (
        ("picker/a.py", "a = 1"),
        ("protos/x.proto", "x"),
        ("docs/page.md", "words"),
        ("hatch_build.py", ""),
        ("pyproject.toml", ""),
        ("requirements.lock", ""),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_only_what_is_compiled_decides(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "build" / "compiled"
    compiled: list[str] = []

    def compile_in_place(root: Path) -> list[Path]:
        made = root / "picker" / "a.so"
        made.write_text((root / "picker" / "a.py").read_text())
        compiled.append(made.read_text())
        return [made]

    monkeypatch.setattr(module, "compile_in_place", compile_in_place)

    def copy() -> tuple[list[Path], str]:
        return module.compiled_copy(source, target), (target / "docs" / "page.md").read_text()

    so = target / "picker" / "a.so"
    assert copy() == ([so], "words")
    (source / "docs" / "page.md").write_text("other words")
    (source / "picker" / "__pycache__").mkdir()
    (source / "picker" / "__pycache__" / "a.pyc").write_text("x")
    assert copy() == ([so], "other words")
    assert compiled == ["a = 1"]
    (source / "picker" / "a.py").write_text("a = 2")
    assert copy() == ([so], "other words")
    assert compiled == ["a = 1", "a = 2"] and so.read_text() == "a = 2"
    (source / "pyproject.toml").write_text("another flag")
    copy()
    assert len(compiled) == 3


def test_a_compilation_that_fails_is_done_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(root: Path) -> list[Path]:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(module, "compile_in_place", fails)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no compiler"):
            module.compiled_copy(source, tmp_path / "compiled")
