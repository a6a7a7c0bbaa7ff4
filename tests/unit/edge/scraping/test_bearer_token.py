"""The token file: read again when it changes, the last good one kept."""

import os
from pathlib import Path

from picker.edge.scraping.bearer_token import BearerTokenFile


def rewrite(path: Path, text: str, second: int) -> None:
    path.write_text(text)
    os.utime(path, (second, second))


def test_no_file_no_header() -> None:
    assert BearerTokenFile(None).header(0.0) == ""


def test_a_changed_file_is_read_again_and_believed_when_two_looks_agree(tmp_path: Path) -> None:
    path = tmp_path / "token"
    rewrite(path, "one\n", 1)
    token = BearerTokenFile(str(path))
    assert token.header(10.0) == "Authorization: Bearer one\r\n"
    rewrite(path, "two", 2)
    assert token.header(10.5) == "Authorization: Bearer one\r\n"
    assert token.header(11.0) == "Authorization: Bearer one\r\n"  # two reads agree before it is believed
    assert token.header(12.0) == "Authorization: Bearer two\r\n"


def test_a_bad_or_missing_file_is_named_and_the_last_token_kept(tmp_path: Path) -> None:
    path = tmp_path / "token"
    rewrite(path, "good", 1)
    token = BearerTokenFile(str(path))
    token.header(0.0)
    rewrite(path, "two words", 2)
    token.header(1.0)
    assert token.header(2.0) == "Authorization: Bearer good\r\n"
    assert token.problem is not None and str(path) in token.problem
    path.unlink()
    assert token.header(3.0) == "Authorization: Bearer good\r\n"
    assert token.header(4.0) == "Authorization: Bearer good\r\n"
    assert token.problem is not None and "No such file" in token.problem
    rewrite(path, "good", 1)
    token.header(5.0)
    token.header(6.0)
    assert token.problem is None


def test_a_token_that_is_not_there_yet_is_used_once_it_is(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = BearerTokenFile(str(path))
    assert token.header(0.0) == ""
    assert token.problem is not None and str(path) in token.problem
    rewrite(path, "late", 1)
    assert token.header(1.0) == "Authorization: Bearer late\r\n"
    assert token.problem is None


def test_a_token_cannot_smuggle_a_header(tmp_path: Path) -> None:
    path = tmp_path / "token"
    rewrite(path, "a\r\nX-Evil: 1", 1)
    assert BearerTokenFile(str(path)).header(0.0) == ""
