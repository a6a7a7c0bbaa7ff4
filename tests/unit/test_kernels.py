"""A kernel that is absent is done without; one that is broken is an error that says what to do."""

import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from picker import __version__, kernels
from picker.cli import main


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of this test's own whose kernels are looked for."""
    folder = tmp_path / "kernels_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(kernels, "KERNELS", ("kernels_of_a_test._one",))
    yield folder
    for name in [name for name in sys.modules if name.startswith("kernels_of_a_test")]:
        del sys.modules[name]


def suffix() -> str:
    return EXTENSION_SUFFIXES[0]


def test_absent_is_none(package):
    assert kernels.kernel("kernels_of_a_test._one") is None
    assert kernels.build().kernels == ()


def test_broken_is_an_error_that_names_it_and_the_next_step(package, capsys):
    (package / f"_one{suffix()}").write_bytes(b"cut short")
    with pytest.raises(kernels.BrokenKernel, match=r"kernels_of_a_test\._one is there .* install the picker again"):
        kernels.kernel("kernels_of_a_test._one")
    assert main(["--version"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("picker: kernels_of_a_test._one is there") and said.err.count("\n") == 1
    assert not said.out


def test_a_kernel_that_misses_a_module_is_broken_too(package):
    (package / "_one.py").write_text("import no_such_module_anywhere")
    with pytest.raises(ImportError, match="no_such_module_anywhere"):
        kernels.kernel("kernels_of_a_test._one")


def test_version_says_which_build():
    done = subprocess.run([sys.executable, "-m", "picker", "--version"], capture_output=True, text=True, check=True)
    running = kernels.build()
    kinds = {
        True: f"picker {__version__} (compiled; kernels: document, bulk, excerpt, headers, blocks, fused)\n",
        False: f"picker {__version__} (interpreted; no kernels)\n",
    }
    assert done.stdout == kinds[running.compiled]
