"""What an installation builds: compiled where it can be, pure Python where it is asked for or cannot be helped."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.bridge.app import Application
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import hatch_build

REPOSITORY = Path(__file__).resolve().parents[2]
NO_COMPILER = {"CC": "/no/such/compiler"}


@pytest.fixture(autouse=True)
def nothing_asked(monkeypatch):
    for name in ("PICKER_PURE", "PICKER_COMPILED", "CC"):
        monkeypatch.delenv(name, raising=False)


class Said(Application):
    def __init__(self):
        super().__init__()
        self.warnings = []

    def display_warning(self, message="", **_):
        self.warnings.append(message)


@pytest.fixture
def hook(tmp_path):
    """The hook as hatchling makes it; `said` holds its warnings."""
    said = Said()
    metadata = ProjectMetadata(str(REPOSITORY), PluginManager())
    found = hatch_build.CompiledBuildHook(str(REPOSITORY), {}, None, metadata, str(tmp_path), "wheel", said)
    found.said = said.warnings  # type: ignore[attr-defined]
    yield found
    found.finalize("standard", {}, "")


@pytest.fixture
def compiling(monkeypatch):
    """A compiler that needs no time: one module comes out of it."""

    def compile_in_place(root):
        assert (root / "picker/director.py").is_file() and (root / "pyproject.toml").is_file()
        made = root / "picker/director.so"
        made.touch()
        return [made]

    monkeypatch.setattr(hatch_build, "missing", lambda: None)
    monkeypatch.setattr(hatch_build, "compile_in_place", compile_in_place)


def built(hook, version="standard"):
    data = {"force_include": {}, "pure_python": True, "infer_tag": False}
    hook.initialize(version, data)
    return data


PURE = {"force_include": {}, "pure_python": True, "infer_tag": False}


def test_compiled_where_it_can_be(hook, compiling):
    data = built(hook)
    assert list(data["force_include"].values()) == ["picker/director.so"]
    assert not data["pure_python"] and data["infer_tag"] and not hook.said


def test_pure_where_it_is_asked_for_and_where_it_is_edited(hook, compiling, monkeypatch):
    assert built(hook, "editable") == PURE
    monkeypatch.setenv("PICKER_PURE", "1")
    assert built(hook) == PURE
    assert not hook.said, "who asked for it need not be told"


def test_one_line_says_why_nothing_is_compiled(hook, monkeypatch):
    monkeypatch.setenv("CC", "/no/such/compiler -m64")
    assert built(hook) == PURE
    (line,) = hook.said
    assert "pure Python" in line and "no C compiler (/no/such/compiler): install one" in line and "\n" not in line


def test_a_compiler_that_fails_leaves_pure_python_and_its_last_words(hook, monkeypatch):
    def fails(root):
        raise RuntimeError("the compiled build failed; mypyc or the C compiler says:\nwarning\nfatal: no memory\n")

    monkeypatch.setattr(hatch_build, "missing", lambda: None)
    monkeypatch.setattr(hatch_build, "compile_in_place", fails)
    assert built(hook) == PURE
    (line,) = hook.said
    assert "fatal: no memory" in line and "PICKER_COMPILED=1" in line and "\n" not in line
    monkeypatch.setenv("PICKER_COMPILED", "1")
    with pytest.raises(RuntimeError, match="the compiled build failed"):
        built(hook)


def test_what_must_be_compiled_and_cannot_be_is_an_error(hook, monkeypatch):
    monkeypatch.setenv("PICKER_COMPILED", "1")
    monkeypatch.setattr(hatch_build, "missing", lambda: "no C compiler (cc): install one")
    with pytest.raises(RuntimeError, match=r"no C compiler \(cc\)"):
        built(hook)


def test_asking_for_both_is_an_error(hook, monkeypatch):
    monkeypatch.setenv("PICKER_COMPILED", "1")
    monkeypatch.setenv("PICKER_PURE", "1")
    with pytest.raises(ValueError, match="set one of them"):
        built(hook)
    monkeypatch.setenv("PICKER_PURE", "0")
    assert hatch_build.wanted() is True


def test_an_isolated_build_brings_the_compilers_packages_only_where_they_are_used(hook, monkeypatch):
    monkeypatch.setattr(hatch_build, "machine_lacks", lambda: None)
    assert {"mypy>=1.19", "numpy>=2.0"} <= set(hook.dependencies())
    monkeypatch.setattr(hatch_build, "machine_lacks", lambda: "no C compiler")
    assert hook.dependencies() == []
    monkeypatch.setenv("PICKER_COMPILED", "1")
    assert hook.dependencies(), "the build is to fail where it says why"


@pytest.mark.parametrize(("asked", "lines"), [(NO_COMPILER, 1), ({"PICKER_PURE": "1"}, 0)])
def test_pip_makes_a_wheel_of_pure_python_and_says_so_in_one_line(asked, lines, tmp_path, monkeypatch):
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", "")
    command = ["-m", "pip", "--disable-pip-version-check", "wheel", "-v", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", str(tmp_path), str(REPOSITORY)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert (done.stdout + done.stderr).count("picker: pure Python") == lines
    with zipfile.ZipFile(wheel) as archive:
        assert "picker/director.py" in archive.namelist()
        assert not [name for name in archive.namelist() if name.endswith((".c", ".so", ".pyc"))]
