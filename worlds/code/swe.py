"""SWE: code tasks on local git checkouts. Each row of the data set SWE-Gym is a task.

This is the code task of arXiv 2510.01132 without containers. Deliberate differences from the paper:
- Commands and tests run in the sandbox of `sandbox.py`, unless the option `sandbox=none` is set.
- The policy gets the files of the base commit without the git history, because the history may
  contain the answer.
- Tests that the unpatched code already passes earn no reward. If these tests earned reward, a
  patch without effect could earn most of the reward.

Tests run in the same process as the code that they test, so the tested code can forge the report
of the tests.
"""

from configurator import UserError

import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from envs import SPLIT_SIZE, Env, Move
from worlds.code.sandbox import MAX_SECONDS, FolderFull, TaskFolder, can_isolate, run_sandboxed

# Linux limits each argument of a program, such as a shell command after `sh -c`, to 131,072 bytes.
# The shell command that runs the tests contains a test patch (at most MAX_COMMAND bytes) once, and
# the names of the test files (at most MAX_NAMES bytes) three times. So MAX_COMMAND + 3 * MAX_NAMES
# must stay below the limit.
MAX_COMMAND = 100_000  # bytes of a command or a patch
MAX_NAMES = 10_000  # bytes of the names of all test files of a row
SHOWN_OUTPUT = 2_000  # the policy sees this many characters at the end of the output
END_OF_PATCH = "END OF PATCH"
APPLY_PATCH = f"git apply --allow-empty - <<'{END_OF_PATCH}'\n{{}}\n{END_OF_PATCH}"
RUN_TESTS = "python -m pytest -q -rA --tb=no -- {} 2>/dev/null | grep -a ^PASSED"
ROW_TYPES = {
    "instance_id": str,
    "repo": str,
    "base_commit": str,
    "problem_statement": str,
    "patch": str,
    "test_patch": str,
    "FAIL_TO_PASS": list,
    "PASS_TO_PASS": list,
}
COMMIT = re.compile(r"[0-9a-f]{7,64}")
REPO = re.compile(r"([\w.-]+/)*\w[\w.-]*", re.ASCII)
NEW_FILE = re.compile(r"^\+\+\+ b/(\S+)", re.MULTILINE)  # a file that a patch adds or changes

# `archive_commit` runs `git archive` with these limits and environment variables. The first three
# variables keep git from reading the configuration of the machine and of the user.
GIT_LIMITS = ("prlimit", "--as=4294967296", "--fsize=1073741824", "--core=0")
GIT_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
NO_ATTRIBUTES = (
    "* -export-ignore -export-subst -filter -ident -text !eol !working-tree-encoding !encoding\n"
)


class SWE(Env):
    """Tasks of SWE-Gym. `rows` is a file of JSON lines, with one row of the data set per line.

    The folder of the file `rows` must also hold a git checkout of each repository, for example
    the checkout `moto` of the repository `getmoto/moto`. An action is `submit` or a shell command.
    Shell commands run in a copy of the files of the row's base commit.
    """

    blocking = True
    runs_programs = True

    def __init__(
        self,
        *,
        rows: str = "rows.jsonl",
        reward: str = "binary",
        sandbox: str = "required",
        **common,
    ):
        super().__init__(**common)
        if reward not in ("binary", "ratio") or sandbox not in ("required", "none"):
            raise UserError(
                "swe needs reward binary or ratio, sandbox required or none, "
                f"got reward={reward}, sandbox={sandbox}"
            )
        if sandbox == "required" and not can_isolate():
            raise UserError(
                "no sandbox: swe needs Linux with user namespaces, unshare, setpriv and prlimit; "
                "sandbox=none runs without a sandbox, but resource limits alone are no security "
                "boundary"
            )
        self.folder = Path(rows).parent
        self.reward = reward
        self.isolated = sandbox == "required"
        self.rows = read_rows(Path(rows))
        # The splits "eval" and "heldout" take SPLIT_SIZE rows each. If there are fewer than
        # 4 * SPLIT_SIZE rows, too few would be left for training, so the splits may share rows.
        self.repeats = len(self.rows) < 4 * SPLIT_SIZE

    def draw(self, rng: np.random.Generator) -> tuple:
        return ("swe", str(rng.choice(list(self.rows))))

    def _start(self, instance: tuple) -> None:
        self.row = self.rows[instance[1]]
        self.output = ""
        self.patch_command = APPLY_PATCH.format(self.row["patch"])
        self.patch_was_run = False
        checkout = self.folder / self.row["repo"].split("/")[-1]
        commit = self.row["base_commit"]
        self.home = TaskFolder()
        try:
            self.base_archive = archive_commit(checkout, commit)
            unpack = "tar xf - --no-same-owner"
            code, output = run_sandboxed(
                unpack, self.home.name, self.base_archive, isolated=self.isolated
            )
            if code != 0:
                raise ValueError(f"its files cannot be unpacked ({output[-SHOWN_OUTPUT:]})")
        except subprocess.TimeoutExpired as error:
            raise UserError(f"git took more than {MAX_SECONDS} s to read {checkout}") from error
        except (OSError, ValueError, FolderFull, subprocess.SubprocessError) as error:
            raise UserError(
                f"swe needs a git checkout of {self.row['repo']} with commit {commit} "
                f"in {checkout}: {error}"
            ) from error

    # ---------- actions

    def _read(self, action: str) -> str | None:
        if "\0" in action or not 0 < len(action.encode()) <= MAX_COMMAND:
            return None
        return action

    def _move(self, command: str) -> Move:
        try:
            return self._run(command)
        except FolderFull as error:
            self.output = str(error)
            self.home.cleanup()
            return Move(0.0, terminated=True, success=False, effective=False)

    def _run(self, command: str) -> Move:
        if command == "submit":
            return self._submit()
        code, self.output = run_sandboxed(command, self.home.name, isolated=self.isolated)
        # `patch_command` applies the row's patch. A reply is split into actions at "||". If the
        # patch contains "||", `patch_command` arrives as several actions. So `command` is compared
        # only with the first part of `patch_command`.
        if command == self.patch_command.split("||")[0].strip():
            self.patch_was_run = True
        if not self.actions_left:  # no action is left for `submit`
            return self._submit()
        return Move(0.0, terminated=False, success=False, effective=code == 0)

    def _submit(self) -> Move:
        failing = set(self.row["FAIL_TO_PASS"])
        deciding = failing | set(self.row["PASS_TO_PASS"])
        passed = len(deciding & self._passed_tests()) / len(deciding)
        success = passed == 1
        reward = float(success)
        # The reward "ratio" falls by 1 / len(failing) for each failed test. The unpatched code
        # fails exactly the tests in `failing`, so the unpatched code gets the reward 0.
        if self.reward == "ratio":
            reward = max(0.0, 1 - (1 - passed) * len(deciding) / len(failing))
        return Move(reward, terminated=True, success=success, effective=True)

    def _passed_tests(self) -> set[str]:
        """Restore the test files of the base commit, apply the row's test patch and run the tests.

        Returns: the names of the tests that pass.
        """
        test_patch = self.row["test_patch"]
        tests = self.row["FAIL_TO_PASS"] + self.row["PASS_TO_PASS"]
        files = {file_of(test) for test in tests} | set(NEW_FILE.findall(test_patch))
        names = shlex.join(sorted(files))
        command = f"rm -rf -- {names}; tar xf - --no-same-owner -- {names}; "
        command += f"{APPLY_PATCH.format(test_patch)}\n"
        command += RUN_TESTS.format(names)
        _, output = run_sandboxed(
            command, self.home.name, self.base_archive, isolated=self.isolated
        )
        return set(re.findall(r"^PASSED (\S.*?)\s*$", output, re.MULTILINE))

    # ---------- texts

    def observe(self) -> str:
        return f"Task: {self.row['problem_statement']}\n{self.output[-SHOWN_OUTPUT:]}".strip()

    def rules(self) -> str:
        return (
            "Mend the code in this folder. Actions are shell commands without ||, and submit. "
            "Hidden tests decide."
        )

    def statements(self) -> list[str]:
        return []

    # ---------- players

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        if self.terminated:
            return []
        commands = ["submit"] if self.patch_was_run else [self.patch_command, "submit"]
        return commands[:max_actions]

    def greedy(self) -> str:
        return "submit"

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        return rng.choice(["ls", "submit"], count).tolist()


# ---------- checkouts


def archive_commit(checkout: Path, commit: str) -> bytes:
    """Return the files of a commit as a tar archive.

    The checkout is not trusted. git works in an empty repository that borrows only the objects of
    the checkout, so settings, filters, hooks and attributes of the checkout have no effect.

    Raises: ValueError if the checkout is missing or `git archive` fails, for example because the
        commit is missing. OSError if a program cannot start. SubprocessError if `git init` fails,
        or if `git archive` takes more than MAX_SECONDS.
    """
    objects = (checkout / ".git" / "objects").absolute()
    if not objects.is_dir():
        raise ValueError(f"there is no folder {objects}")
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryFile() as output:
        environment = {**GIT_ENVIRONMENT, "PATH": os.environ.get("PATH", ""), "HOME": empty}
        hash_name = "sha256" if len(commit) == 64 else "sha1"
        init = ["git", "init", "-q", "--bare", "--template=", f"--object-format={hash_name}", empty]
        subprocess.run(init, env=environment, check=True, capture_output=True)
        Path(empty, "info").mkdir()
        Path(empty, "info", "attributes").write_text(NO_ATTRIBUTES, encoding="utf-8")
        environment["GIT_OBJECT_DIRECTORY"] = str(objects)
        done = subprocess.run(
            [*GIT_LIMITS, "git", f"--git-dir={empty}", "archive", "--format=tar", commit],
            cwd=empty,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            timeout=MAX_SECONDS,
        )
        if done.returncode != 0:
            raise ValueError(done.stderr.decode(errors="replace").strip())
        output.seek(0)
        return output.read()


# ---------- rows


def read_rows(path: Path) -> dict[str, dict]:
    """Read a file of JSON lines. Each line is a row of SWE-Gym.

    Returns: a dict that maps each `instance_id` to its row.
    Raises: UserError for a missing file or an illegal row.
    """
    if path.exists() and not path.is_file():
        raise UserError(
            f"swe needs rows=PATH of a file of JSON lines, and {path} is not a regular file"
        )
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise UserError(f"swe needs rows=PATH of a file of JSON lines: {error}") from error
    rows = [_check_row(line) for line in lines if line]
    if not rows:
        raise UserError(f"swe needs rows=PATH of a file of JSON lines, and {path} is empty")
    return {row["instance_id"]: row for row in rows}


def _check_row(line: str) -> dict:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"a row of SWE-Gym is a line of JSON, got {line[:80]!r}") from error
    if not isinstance(row, dict):
        row = {}
    wrong = [key for key, kind in ROW_TYPES.items() if not isinstance(row.get(key), kind)]
    if wrong:
        raise UserError(
            f"a row of SWE-Gym must have texts and lists of tests; {', '.join(wrong)} "
            f"is missing or has another type in {line[:80]!r}"
        )
    mistake = next(_mistakes_in(row), None)
    if mistake:
        raise UserError(f"a row of SWE-Gym is refused: {mistake}")
    return row


def _mistakes_in(row: dict) -> Iterator[str]:
    """Yield an error message for each illegal value.

    Values become parts of shell commands, so an illegal value could run other commands."""
    for key, kind in ROW_TYPES.items():
        texts = row[key] if kind is list else [row[key]]
        if not all(isinstance(text, str) and _is_plain_text(text) for text in texts):
            yield f"{key} must hold Unicode text without NUL"
    if not 0 < len(row["instance_id"]) <= 200 or not row["instance_id"].isprintable():
        yield f"instance_id must be a short name, got {row['instance_id'][:80]!r}"
    if not REPO.fullmatch(row["repo"]):
        yield f"repo must be OWNER/NAME, got {row['repo'][:80]!r}"
    if not COMMIT.fullmatch(row["base_commit"]):
        yield f"base_commit must be 7 to 64 hexadecimal digits, got {row['base_commit'][:80]!r}"
    for key in ("patch", "test_patch"):
        if END_OF_PATCH in row[key].split("\n"):
            yield f"{key} must not have the line {END_OF_PATCH!r}"
        if len(row[key].encode()) > MAX_COMMAND:
            yield f"{key} must have at most {MAX_COMMAND} bytes because it becomes a command"
    if not row["FAIL_TO_PASS"]:
        yield "FAIL_TO_PASS must name a test"
    tests = row["FAIL_TO_PASS"] + row["PASS_TO_PASS"]
    files = {*map(file_of, tests), *NEW_FILE.findall(row["test_patch"])}
    if sum(len(file.encode()) + 3 for file in files) > MAX_NAMES:
        yield f"the names of its test files must have at most {MAX_NAMES} bytes together"
    for file in files:
        if not _is_inside(file):
            yield f"a test must be in a file below the folder of the repository, got {file[:80]!r}"


def _is_plain_text(text: str) -> bool:
    """Return whether a text can be encoded in UTF-8 and passed on a command line."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _is_inside(file: str) -> bool:
    """Return whether a name is a path below the working folder and not a command-line option."""
    parts = file.split("/")
    is_option = file.startswith(("-", "@"))  # pytest takes @FILE as a file of arguments
    return file.isprintable() and not is_option and not {"", ".", ".."} & set(parts)


def file_of(test: str) -> str:
    """Return the file of a test such as tests/test_calc.py::test_add."""
    return test.split("::")[0]
