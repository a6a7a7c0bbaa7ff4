"""Tools are made once, by `make tools`; tests only look, and are told what to do or why not."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kube import binaries
from tests.tools import go
from tests.tools.__main__ import bring
from tests.tools.progress import Progress
from tests.tools.tool import Missing, NotMade, Tool

Make = Callable[[Path, Progress], None]


def writes(text: str) -> Make:
    def make(folder: Path, progress: Progress) -> None:
        for name in ("one", "two"):
            (folder / name).write_text(text)

    return make


def fails(folder: Path, progress: Progress) -> None:
    (folder / "one").write_text("half")
    raise Missing("there is no network")


def tool(folder: Path, make: Make, recipe: str = "v1") -> Tool:
    return Tool("a pair", "some tests", folder / "bin", ("one", "two"), recipe, "a second", make)


def test_a_fixture_makes_nothing_and_names_the_command(tmp_path: Path) -> None:
    def never(folder: Path, progress: Progress) -> None:
        raise AssertionError("a look made the tool")

    with pytest.raises(NotMade, match="a pair is not here yet: run `make tools`"):
        tool(tmp_path, never).look("one")


def test_what_was_made_is_found_and_not_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bring(tool(tmp_path, writes("first")))
    assert "for some tests: a second" in capsys.readouterr().out
    assert bring(tool(tmp_path, writes("second")))
    assert capsys.readouterr().out == "  a pair: here\n"
    assert tool(tmp_path, fails).look("two").read_text() == "first"
    assert {path.name for path in (tmp_path / "bin").iterdir()} == {"one", "two", "a-pair.stamp"}


def test_another_recipe_makes_it_anew(tmp_path: Path) -> None:
    assert bring(tool(tmp_path, writes("old")))
    renewed = tool(tmp_path, writes("new"), recipe="v2")
    with pytest.raises(NotMade):
        renewed.look("one")
    assert bring(renewed)
    assert renewed.look("one").read_text() == "new"


def test_what_cannot_be_had_is_a_skip_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not bring(tool(tmp_path, fails))
    assert "NOT HERE, so some tests will be skipped: there is no network" in capsys.readouterr().out
    with pytest.raises(Missing, match="there is no network"):
        tool(tmp_path, writes("x")).look("one")
    assert bring(tool(tmp_path, writes("x"))), "a later run tries again"
    assert tool(tmp_path, fails).look("one").read_text() == "x"


def test_without_go_the_words_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    go.go.cache_clear()
    with pytest.raises(Missing, match="Go is not installed"):
        go.build(Progress("x", io.StringIO()), ["version"], cwd=tmp_path)


def test_a_go_that_cannot_get_newer_ones_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "go"
    program.write_text("#!/bin/sh\necho go1.19.8\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    go.go.cache_clear()
    try:
        with pytest.raises(Missing, match=r"too old \(go1.19.8\): install 1.21 or newer"):
            go.go()
    finally:
        go.go.cache_clear()


def test_assets_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(Missing, match="has no etcd"):
        binaries.ETCD.look("etcd")
    (tmp_path / "etcd").touch()
    assert binaries.ETCD.look("etcd") == tmp_path / "etcd"
