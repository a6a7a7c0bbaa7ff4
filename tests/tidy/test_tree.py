"""The tree keeps the rules it was laid out by: layers, sizes, names, maps, paths, and generated code."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PICKER = ROOT / "picker"
LINES_MAX = 500

LONG_FILES: dict[str, str] = {
    "picker/config/config.py": "every knob, once",
    "picker/prefix/index.py": "one tree: all that changes it keeps the same invariants",
    "picker/edge/grpc/h2/connection.py": "one HTTP/2 connection: its frame handlers share windows and streams",
    "picker/wiring.py": "the one place that joins edges and core",
    "picker/director.py": "the policy and what becomes of its picks: all of it changes the same books",
    "picker/extproc/exchange.py": "one state machine: its transitions, and what each does, in one place",
}
"""Files over `LINES_MAX` lines, and why."""

FORBIDDEN_STEMS = {"utils", "util", "helpers", "helper", "common", "types", "base", "manager", "misc", "tools_common"}


def tracked() -> list[Path]:
    """The files of the repository as git knows them, or, without git, those that are here."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
        return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]
    except (OSError, subprocess.CalledProcessError):
        skipped = {
            ".venv",
            ".venv-vllm",
            ".venv-peers",
            ".venv-mutants",
            ".venv-pythons",
            ".git",
            "__pycache__",
            "build",
            "dist",
            ".hypothesis",
            "bin",
        }
        return [path for path in ROOT.rglob("*") if path.is_file() and not skipped & set(path.relative_to(ROOT).parts)]


def texts(*suffixes: str) -> Iterator[tuple[str, str]]:
    """(relative path, text) of tracked files with one of these suffixes, all where none is given."""
    for path in tracked():
        if suffixes and path.suffix not in suffixes:
            continue
        try:
            yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
        except UnicodeDecodeError:
            continue


def test_imports_go_downward_and_the_core_touches_nothing_outside():
    """pyproject.toml's import-linter contracts."""
    command = Path(sys.executable).parent / "lint-imports"
    run = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]


def test_the_generated_code_is_what_the_protos_generate(tmp_path):
    protos = sorted((ROOT / "protos" / "picker").glob("*.proto"))
    assert protos
    arguments = ["-I", ROOT / "protos" / "picker", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *protos]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], check=True, timeout=60)  # type: ignore[list-item]
    fresh = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in (PICKER / "generated").glob("*_pb2.py*")}
    assert set(kept) == set(fresh)
    for name, text in fresh.items():
        assert kept[name] == text, f"picker/generated/{name} differs from its proto: run `make proto`"


def test_files_fit_in_a_readers_head_or_say_why_not():
    over = {}
    for name, text in texts(".py"):
        lines = text.count("\n")
        if name.startswith("picker/") and not name.startswith("picker/generated/") and lines > LINES_MAX:
            over[name] = lines
    unexplained = {name: lines for name, lines in over.items() if name not in LONG_FILES}
    assert not unexplained, "split them, or say in LONG_FILES why they are one"
    assert set(LONG_FILES) <= set(over), "listed, but no longer long"


def test_names_say_what_a_file_is_about():
    assert [path for path in tracked() if path.suffix == ".py" and path.stem in FORBIDDEN_STEMS] == []


def test_every_module_says_what_it_is_for():
    silent = []
    for name, text in texts(".py"):
        if not name.startswith("picker/") or name.startswith("picker/generated/") or not text.strip():
            continue
        if not re.match(r'(#[^\n]*\n)*r?"""\S', text):
            silent.append(name)
    assert not silent


def test_one_public_class_has_one_name():
    """Two things of one name are mixed up in talk, in greps and in imports."""
    places: dict[str, list[str]] = {}
    for name, text in texts(".py"):
        if name.startswith("picker/") and not name.startswith("picker/generated/"):
            for found in re.findall(r"^class ([A-Z]\w*)", text, re.MULTILINE):
                places.setdefault(found, []).append(name)
    assert {found: names for found, names in places.items() if len(names) > 1} == {}


MACHINE_PATH = re.compile(r"(?<![\w.$/}{])/(?:work|home/[a-z]|root|Users)/[\w.-]+")


def test_nothing_knows_the_machine_it_was_written_on():
    found = {}
    for name, text in texts():
        hits = [hit.group() for hit in MACHINE_PATH.finditer(text) if name != "tests/tidy/test_tree.py"]
        if hits:
            found[name] = hits[:3]
    assert not found


@pytest.mark.parametrize("name", ["requirements.lock", "tests/vllm/requirements.txt"])
def test_the_locks_name_no_index(name):
    lock = (ROOT / name).read_text()
    assert "--hash=sha256:" in lock
    assert not re.search(r"--(extra-)?index-url|--find-links|https?://", lock)


LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
CODE_PATH = re.compile(r"`((?:picker|tests|docs|deploy|protos|\.ci)/[\w./-]*[\w/])`")


def documents() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".md"]


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_paths_in_documents_exist(document):
    text = document.read_text("utf-8")
    broken = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        if not (document.parent / target).exists():
            broken.append(target)
    broken += [path for path in CODE_PATH.findall(text) if not (ROOT / path).exists()]
    assert not broken


def test_the_readme_shows_the_two_commands():
    text = (ROOT / "README.md").read_text("utf-8")
    for command in ("make demo", "make test"):
        assert command in text
        target = command.removeprefix("make ")
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


def test_hosted_checks_call_targets_that_there_are():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yaml").read_text("utf-8"))
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    called = {name for step in steps for name in re.findall(r"(?m)^make ([\w-]+)", step)}
    assert called >= {"check", "test", "test-quick", "test-cold", "demo", "tools"}
    targets = set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text("utf-8")))
    assert called <= targets


def test_every_decision_that_code_names_is_written_down():
    pages = {path.name[:4] for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}
    named = {
        number for _, text in texts(".py", ".md", ".toml") for number in re.findall(r"docs/decisions/(\d{4})", text)
    }
    assert named <= pages


PACKAGES = sorted(path.parent for path in PICKER.rglob("__init__.py") if path.parent.name != "generated")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_map_of_a_package_names_every_sibling_and_nothing_else(package):
    """In its docstring: modules as `name.py`, packages as `name/`."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8")), clean=False) or ""
    modules = {path.name for path in package.glob("*.py")} - {"__init__.py", "__main__.py"}
    rooms = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")} - {"generated/"}
    missing = {name for name in modules | rooms if not re.search(rf"(?<![\w/]){re.escape(name)}", text)}
    assert not missing, "say in the docstring what they are for"
    named = re.findall(r"(?m)^(?: {4})?((?:\w+/)*\w+(?:\.py|/))(?= {2,}\S)", text)
    assert named and not [name for name in named if not (package / name).exists()], "named, but not there"
