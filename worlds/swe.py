"""SWE-Gym: rows of the data set on local checkouts.

It is the code task of arXiv 2510.01132 without containers and downloads. It differs on purpose:
- Commands and tests run in the sandbox of `sandbox.py`. Where it does not work, they run only with
  the option `sandbox=none`.
- The policy gets the files of the base commit without the git history, because the history may
  contain the answer.
- The reward leaves out the tests that the unpatched code passes. Otherwise a harmless patch would
  earn most of it.

Tests run in the same process as the code that they test, so this code can forge their report.
"""

from configurator import UserError

import json
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from envs import SPLIT_SIZE, Env, Move
from worlds.sandbox import can_isolate, run_sandboxed

MAX_COMMAND = 100_000  # bytes
SHOWN_OUTPUT = 2_000  # last characters of the output that the policy sees
APPLY_PATCH = "git apply --allow-empty - <<'END OF PATCH'\n{}\nEND OF PATCH"
RUN_TESTS = "python -m pytest -q -rA --tb=no {} 2>/dev/null | grep -a ^PASSED"
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


class SWE(Env):
    """Rows of SWE-Gym: a file of JSON lines, and the checkouts of their repositories in its folder.

    The checkout of `getmoto/moto` is the folder `moto`. An action is a shell command in a copy of
    the base commit, or `submit`. The tests of the row decide.
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
                "swe wants reward binary or ratio, sandbox required or none, "
                f"got reward={reward}, sandbox={sandbox}"
            )
        if sandbox == "required" and not can_isolate():
            raise UserError(
                "no sandbox: swe needs Linux with user namespaces, unshare, setpriv and prlimit; "
                "sandbox=none runs without, but resource limits alone are no security boundary"
            )
        self.folder = Path(rows).parent
        self.reward = reward
        self.isolated = sandbox == "required"
        self.rows = read_rows(Path(rows))
        self.repeats = len(self.rows) < 4 * SPLIT_SIZE  # splits share the rows if there are few

    def draw(self, rng: np.random.Generator) -> tuple:
        return ("swe", str(rng.choice(list(self.rows))))

    def _start(self, instance: tuple) -> None:
        self.row = self.rows[instance[1]]
        self.output = ""
        self.patch_command = APPLY_PATCH.format(self.row["patch"])
        self.patch_was_run = False
        self.base_archive = self._archive()
        self.home = tempfile.TemporaryDirectory()
        unpack = ["tar", "xf", "-", "-C", self.home.name]
        subprocess.run(unpack, input=self.base_archive, check=True)

    def _archive(self) -> bytes:
        """The files of the base commit as a tar archive."""
        checkout = self.folder / self.row["repo"].split("/")[-1]
        archive = ["git", "-C", str(checkout), "archive", self.row["base_commit"]]
        done = subprocess.run(archive, capture_output=True)
        if done.returncode != 0:
            raise UserError(
                f"swe wants a git checkout of {self.row['repo']} with commit "
                f"{self.row['base_commit']} in {checkout}: {done.stderr.decode().strip()}"
            )
        return done.stdout

    # ---------- actions

    def _read(self, action: str) -> str | None:
        if "\0" in action or not 0 < len(action.encode()) <= MAX_COMMAND:
            return None
        return action

    def _move(self, command: str) -> Move:
        if command == "submit":
            return self._submit()
        code, self.output = run_sandboxed(command, self.home.name, isolated=self.isolated)
        # The parser of replies splits at "||". If the patch has one, its first piece arrives here.
        if command == self.patch_command.split("||")[0].strip():
            self.patch_was_run = True
        if not self.actions_left:  # the last action submits as well
            return self._submit()
        return Move(0.0, terminated=False, success=False, effective=code == 0)

    def _submit(self) -> Move:
        failing = set(self.row["FAIL_TO_PASS"])
        deciding = failing | set(self.row["PASS_TO_PASS"])
        passed = len(deciding & self._passed_tests()) / len(deciding)
        success = passed == 1
        reward = float(success)
        if self.reward == "ratio":  # the unpatched code passes all but the failing tests
            reward = max(0.0, 1 - (1 - passed) * len(deciding) / len(failing))
        return Move(reward, terminated=True, success=success, effective=True)

    def _passed_tests(self) -> set[str]:
        """Restore the test files of the base commit, apply the row's test patch, run the tests.

        Returns: the names of the tests that pass.
        """
        test_patch = self.row["test_patch"]
        tests = self.row["FAIL_TO_PASS"] + self.row["PASS_TO_PASS"]
        files = {test.split("::")[0] for test in tests}
        files |= set(re.findall(r"^\+\+\+ b/(\S+)", test_patch, re.MULTILINE))
        names = shlex.join(sorted(files))
        command = f"rm -rf {names}; tar xf - {names}; {APPLY_PATCH.format(test_patch)}\n"
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
        """Apply the row's own patch and submit."""
        if self.terminated:
            return []
        commands = ["submit"] if self.patch_was_run else [self.patch_command, "submit"]
        return commands[:max_actions]

    def greedy(self) -> str:
        return "submit"

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        return rng.choice(["ls", "submit"], count).tolist()


def read_rows(path: Path) -> dict[str, dict]:
    """Read a file of JSON lines.

    Returns: instance_id -> row. Raises: UserError for a missing file or a row of another format.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UserError(f"swe wants rows=PATH of a file of JSON lines: {error}") from error
    rows = [_check_row(line) for line in lines if line]
    return {row["instance_id"]: row for row in rows}


def _check_row(line: str) -> dict:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"a row of SWE-Gym is a line of JSON, got {line[:80]!r}") from error
    if not isinstance(row, dict):
        row = {}
    wrong = [key for key, kind in ROW_TYPES.items() if not isinstance(row.get(key), kind)]
    if wrong:
        raise UserError(
            f"a row of SWE-Gym must have texts and lists of tests; {', '.join(wrong)} "
            f"is missing or has another type in {line[:80]!r}"
        )
    return row
