"""Tests of utils/code_version.py: the commit of the code, and how the code differs from it."""

import doctest
import subprocess
import sys
from types import ModuleType

import pytest

from support import run_folder
from utils import code_version


def git(folder, *args):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.check_output(["git", *identity, *args], cwd=folder, text=True).strip()


@pytest.fixture
def tree(tmp_path, monkeypatch):
    folder = tmp_path / "tree"
    (folder / "studies/lake/rows").mkdir(parents=True)
    (folder / "train.py").write_text("one = 1\ntwo = 2\n")
    (folder / "studies/lake/rows/old.json").write_text("one")
    (folder / "studies/page.md").write_text("one")
    (folder / ".gitignore").write_text("out/\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    monkeypatch.setattr(code_version, "ROOT", folder)
    return folder


def import_file(path, monkeypatch):
    path.parent.mkdir(exist_ok=True)
    path.write_text("three = 3\n")
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, f"environment {path}", module)


def test_doctests():
    results = doctest.testmod(code_version)
    assert results.attempted > 0 and results.failed == 0


def test_git_commit_and_dirty(tree, tmp_path, monkeypatch):
    commit = git(tree, "rev-parse", "HEAD")
    assert code_version.git_commit() == commit
    (tree / "studies/lake/rows/old.json").write_text("two")  # stored results are not code
    (tree / "studies/page.md").write_text("two")  # pages are not code
    assert code_version.git_commit() == commit
    assert code_version.code_diff() == ""
    (tree / "train.py").write_text("one = 1\ntwo = 4\n")
    assert code_version.git_commit() == f"{commit}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_version.git_commit() is None  # git is not in PATH
    assert code_version.code_diff() == ""


def test_no_repository(tmp_path, monkeypatch):
    monkeypatch.setattr(code_version, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert code_version.git_commit() is None
    assert code_version.code_diff() == ""


def test_the_saved_diff_restores_the_code(tree, tmp_path, monkeypatch):
    (tree / "train.py").write_text("one = 1\ntwo = 4\nfive = 5\n")
    import_file(tree / "my games/doors.py", monkeypatch)
    import_file(tree / "out/ignored.py", monkeypatch)
    (tree / "not_imported.py").write_text("four = 4\n")
    path = tmp_path / "run" / code_version.NAME
    path.parent.mkdir()
    run_folder.save_code_diff(path)
    changes = code_version.changes_in(path.read_text())
    counts = {name: (change.added, change.removed) for name, change in changes.items()}
    assert counts == {"train.py": (2, 1), "my games/doors.py": (1, 0)}
    git(tmp_path, "clone", "-q", str(tree), "fresh")
    git(tmp_path / "fresh", "apply", str(path))
    for name in ("train.py", "my games/doors.py"):
        assert (tmp_path / "fresh" / name).read_text() == (tree / name).read_text()


def test_a_clean_tree_leaves_no_diff_of_an_earlier_start(tree, tmp_path):
    path = tmp_path / code_version.NAME
    path.write_text("an earlier start")
    run_folder.save_code_diff(path)
    assert not path.exists()


def test_a_long_diff_is_cut_and_says_so(tree, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(code_version, "MAX_CHARACTERS", 300)
    (tree / "train.py").write_text("number = 1\n" * 100)
    path = tmp_path / code_version.NAME
    run_folder.save_code_diff(path)
    text = path.read_text()
    lines = text.splitlines()
    assert len(text) < 400 and lines[-2] == "+number = 1"
    assert lines[-1].startswith("cut: the difference has 1") and code_version.is_cut(text)
    assert f"{path} is not complete: cut: the difference" in capsys.readouterr().out
    assert not code_version.is_cut("diff --git a/x b/x\n@@ -1 +1 @@\n+x\n")
