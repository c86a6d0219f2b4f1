"""Finds the commit of the code that runs, and how the code differs from this commit.

`git checkout COMMIT` and `git apply out/RUN/code.diff` restore the code of a run, unless
code.diff was cut.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NAME = "code.diff"
MAX_CHARACTERS = 1_000_000
# The diff leaves out result files and Markdown pages, because no run depends on them.
RESULTS = (":!/studies/*.json", ":!/studies/*.csv", ":!/studies/*.png", ":!*.md")
# These options override git settings of the user that would change the format of the diff.
DIFF = (
    "diff",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)


class Change(NamedTuple):
    """How a file differs from the commit."""

    added: int  # number of lines
    removed: int  # number of lines
    text: str


def git_commit() -> str | None:
    """The commit of this code, with "-dirty" if a tracked file has changed; None if git fails.

    Changes of result files and Markdown pages (RESULTS) do not count.
    """
    commit = _git("rev-parse", "HEAD")
    changed = _git(*DIFF, "--name-only", "HEAD", "--", ":/", *RESULTS)
    if commit is None or changed is None:
        return None
    return f"{commit.strip()}-dirty" if changed else commit.strip()


def code_diff() -> str:
    """How the code differs from its commit, as one text for `git apply`.

    The text is "" if there is no difference or git fails. It covers tracked files except result
    files and Markdown pages (RESULTS). It also covers imported Python files that git neither tracks
    nor ignores. A text of more than MAX_CHARACTERS is cut, and its last line says so.
    """
    parts = [_git(*DIFF, "HEAD", "--", ":/", *RESULTS) or ""]
    for path in _imported_untracked():
        parts.append(_git(*DIFF, "--no-index", "--", "/dev/null", path) or "")
    text = "".join(parts)
    if len(text) <= MAX_CHARACTERS:
        return text
    whole_lines = text[:MAX_CHARACTERS].rpartition("\n")[0]
    return f"{whole_lines}\n{_cut_line(len(text))}\n"


def is_cut(diff: str) -> bool:
    """Whether `code_diff` cut this diff."""
    last = diff[-200:].rstrip("\n").rpartition("\n")[2]
    return last.startswith("cut: ")


def changes_in(diff: str) -> dict[str, Change]:
    """Map the name of each changed file in a diff to its Change.

    >>> diff = "diff --git a/x.py b/x.py\\n--- a/x.py\\n+++ b/x.py\\n@@ -1 +1,2 @@\\n x\\n+y\\n"
    >>> changes_in(diff)["x.py"][:2]
    (1, 0)
    """
    changes = {}
    for part in re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE):
        head, _, body = part.partition("\n@@ ")
        lines = body.split("\n")[1:]  # [1:] drops the rest of the first @@ line
        if head.startswith("diff --git "):
            name = head.split("\n")[0].rpartition(" b/")[2]
            added = sum(line.startswith("+") for line in lines)
            removed = sum(line.startswith("-") for line in lines)
            changes[name] = Change(added, removed, part)
    return changes


def _imported_untracked() -> list[str]:
    """Imported Python files below ROOT that git neither tracks nor ignores, as relative paths."""
    listed = _git("ls-files", "--others", "--exclude-standard", "-z", "--", "*.py") or ""
    paths = [path for path in listed.split("\0") if path]
    # The loop below takes a second, because it resolves the paths of all modules. Usually `paths`
    # is empty, and the loop is not needed.
    if not paths:
        return []
    imported = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            imported.add(Path(file).resolve())
    return sorted(path for path in paths if (ROOT / path).resolve() in imported)


def _cut_line(num_characters: int) -> str:
    return f"cut: the difference has {num_characters} characters, more than {MAX_CHARACTERS}"


def _git(*arguments: str) -> str | None:
    """The output of git; None if git fails or is missing."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True)
    except OSError:
        return None
    found_differences = "--no-index" in arguments and done.returncode == 1
    if done.returncode != 0 and not found_differences:
        return None
    return done.stdout.decode(errors="replace")
