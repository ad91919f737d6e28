"""Files for the user, in directories where others may write."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

from rekindle.errors import StorageError
from rekindle.storage import files


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_are_those_of_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        files.write_output(tmp_path / "report.html", b"a", b"b")
    finally:
        os.umask(before)
    assert (tmp_path / "report.html").read_bytes() == b"ab"
    assert stat.S_IMODE((tmp_path / "report.html").stat().st_mode) == mode


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "report.html").symlink_to(tmp_path / "victim")
    files.write_output(tmp_path / "report.html", b"new")
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "report.html").is_symlink()


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)
    path.write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))  # a full disk, as far as a writer can tell
    try:
        with pytest.raises(StorageError, match="cannot write"):
            files.write_output(path, b"0123456789abcdef")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "before"
    files.write_output(path, b"after")
    assert path.read_text() == "after"


@pytest.mark.parametrize("name", [".", "..", "/", "there"])
def test_a_directory_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*: .*is a directory|Is a directory"):
        files.write_output(Path(name), b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["there"]
