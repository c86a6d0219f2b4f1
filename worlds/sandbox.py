"""SWE-Gym: rows of the data set on local checkouts, behind the protocol of `envs.Env`, and a sandbox for its commands.

It is the code task of arXiv 2510.01132 without containers or downloads. What differs, on purpose:
- what a policy runs, tests included, sees neither network nor disk, but a folder that it may change, or does not run;
- it gets the files of the base commit without the history, in which the answer may lie;
- the ratio leaves out what the unpatched code passes, or a harmless patch would earn most of it.
Tests run in one process with the code that they test: code that sets out to forge their report can do so.
"""

from configurator import UserError

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from envs import SPLIT_SIZE, Env

SECONDS, LONGEST = 60, 100_000  # a command may take; bytes of a command
LIMITS = "prlimit --nproc=64 --as=2147483648 --fsize=67108864 --core=0"  # processes; bytes of each, of its files
HEREDOC = "git apply --allow-empty - <<'END OF PATCH'\n{}\nEND OF PATCH"


class SWE(Env):
    """Rows of SWE-Gym, a file of JSON lines, on local checkouts beside it: `getmoto/moto` in the folder `moto`. Actions
    are shell commands in a copy of the base commit, without its history, and `submit`; the tests of the row decide."""

    blocking = True

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
                f"swe wants reward binary or ratio, sandbox required or none, got {reward}, {sandbox}"
            )
        if sandbox == "required" and not can_isolate():
            raise UserError(
                "no sandbox: swe needs Linux with user namespaces, unshare, setpriv and prlimit. sandbox="
                "none does without; limits on resources alone are no security boundary"
            )
        self.folder, self.reward, self.isolated = Path(rows).parent, reward, sandbox == "required"
        lines = filter(None, Path(rows).read_text(encoding="utf-8").split("\n"))
        self.rows = {row["instance_id"]: row for row in map(checked, lines)}
        self.repeats = (
            len(self.rows) < 4 * SPLIT_SIZE
        )  # so few that splits share them, as in Bandit

    def draw(self, rng: np.random.Generator) -> tuple:
        return ("swe", str(rng.choice(list(self.rows))))

    def _start(self, instance: tuple) -> None:
        self.row, self.home, self.output = self.rows[instance[1]], tempfile.TemporaryDirectory(), ""
        self.mend, self.mended = HEREDOC.format(self.row["patch"]), False  # whether that was run
        checkout = self.folder / self.row["repo"].split("/")[-1]
        archive = ["git", "-C", str(checkout), "archive", self.row["base_commit"]]
        self.base = subprocess.run(archive, capture_output=True, check=True).stdout
        subprocess.run(["tar", "xf", "-", "-C", self.home.name], input=self.base, check=True)

    def _read(self, action: str) -> str | None:
        return action if "\0" not in action and 0 < len(action.encode()) <= LONGEST else None

    def _move(self, command: str) -> tuple[float, bool, bool, bool]:
        if command != "submit":
            code, self.output = sandboxed(command, self.home.name, isolated=self.isolated)
            self.mended |= (
                command == self.mend.split("||")[0].strip()
            )  # a patch with || comes in pieces
            if self.actions_left:  # the last action submits as well
                return 0.0, False, False, code == 0
        fail, keep = (set(self.row[key]) for key in ("FAIL_TO_PASS", "PASS_TO_PASS"))
        share = len((fail | keep) & self._passed()) / len(fail | keep)
        ratio = max(
            0.0, 1 - (1 - share) * len(fail | keep) / len(fail)
        )  # the unpatched code passes all but `fail`
        return ratio if self.reward == "ratio" else float(share == 1), True, share == 1, True

    def _passed(self) -> set[str]:
        """Names of tests that pass, with the test files of the base commit and the row's patch to them."""
        patch, names = (
            self.row["test_patch"],
            [*self.row["FAIL_TO_PASS"], *self.row["PASS_TO_PASS"]],
        )
        files = shlex.join(
            {*re.findall(r"^\+\+\+ b/(\S+)", patch, re.M), *(name.split("::")[0] for name in names)}
        )
        command = f"rm -rf {files}; tar xf - {files}; {HEREDOC.format(patch)}"
        command += f"\npython -m pytest -q -rA --tb=no {files} 2>/dev/null | grep -a ^PASSED"
        _, output = sandboxed(command, self.home.name, self.base, isolated=self.isolated)
        return set(re.findall(r"^PASSED (\S.*?)\s*$", output, re.M))

    def observe(self) -> str:
        return f"Task: {self.row['problem_statement']}\n{self.output[-2000:]}".strip()

    def rules(self) -> str:
        return "Mend the code in this folder. Actions are shell commands without ||, and submit. Hidden tests decide."

    def statements(self) -> list[str]:
        return []

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        """Apply the row's own patch and submit."""
        return [] if self.terminated else [*[self.mend][self.mended :], "submit"][:max_actions]

    def greedy(self) -> str:
        return "submit"

    def random(self, count: int, rng: np.random.Generator) -> list[str]:
        return rng.choice(["ls", "submit"], count).tolist()


def checked(line: str) -> dict:
    """A row of the data set. Raises: UserError unless it has what is used here."""
    row, texts = (
        json.loads(line),
        ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch"),
    )
    kinds = dict.fromkeys(texts, str) | dict.fromkeys(("FAIL_TO_PASS", "PASS_TO_PASS"), list)
    if wrong := [
        key
        for key, kind in kinds.items()
        if not (isinstance(row, dict) and isinstance(row.get(key), kind))
    ]:
        raise UserError(
            f"a row of SWE-Gym has texts, and lists of tests; {', '.join(wrong)} is not in {line[:80]!r}"
        )
    return row


# ---------- sandbox

# A new root of its own: system and interpreter read-only, the folder as /testbed; then no privilege is left
ISOLATE = """set -e; umask 022; new=$1 folder=$2 user=$3 command=$4; shift 4
mount -t tmpfs -o mode=755,size=64m tmpfs "$new"; cd "$new"; mkdir old proc dev tmp testbed
for d in bin sbin lib lib32 lib64; do [ ! -L /$d ] || cp -P /$d .; done
mount -t proc -o ro,nosuid,nodev,noexec proc proc; mount -t tmpfs -o size=64m,mode=1777,nosuid,nodev tmpfs tmp
for d; do mkdir -p ".$d"; mount --bind "$d" ".$d"; mount -o remount,bind,ro,nosuid,nodev ".$d"; done
for d in null zero random urandom; do : > dev/$d; mount --bind /dev/$d dev/$d; done
mount --bind "$folder" testbed; [ -z "$user" ] || chown -hR "$user" testbed
pivot_root . old; umount -l old; rmdir old; mount -o remount,bind,ro /; cd /testbed; code=0
LIMITS setpriv ${user:+--reuid=$user --regid=$user --clear-groups} \\
  --no-new-privs --inh-caps=-all --bounding-set=-all sh -c "$command" || code=$?
exit $code""".replace("LIMITS", LIMITS)


def sandboxed(
    command: str, folder: str, given: bytes = b"", *, isolated: bool = True
) -> tuple[int | None, str]:
    """Run a shell command in a folder, in namespaces of its own: no network, no other processes, nothing else to write.

    Args: given: its standard input. isolated: False runs it as you, under limits alone, which are no boundary.
    Returns: exit status, None after SECONDS; the first 2**20 bytes of its output. Nothing of it runs on afterwards;
    without isolation what has left its session does."""
    user = (
        str(2**15 + os.stat(folder).st_ino % 2**14) if os.geteuid() == 0 else ""
    )  # one that owns nothing else
    system = [
        d
        for d in ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives")
        if os.path.isdir(d)
    ]
    system = dict.fromkeys(
        [*(d for d in system if not os.path.islink(d)), sys.base_prefix, sys.prefix]
    )
    env = {
        "PATH": f"{sys.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
    }
    env |= {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }  # stale bytecode hides an edit
    with (
        tempfile.TemporaryDirectory() as new,
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as output,
    ):
        stdin.write(given), stdin.seek(0)
        argv = [
            "unshare",
            *([] if user else ["-Ur"]),
            "-mnpiuf",
            "--kill-child",
            "sh",
            "-c",
            ISOLATE,
            "sh",
        ]
        argv = (
            [*argv, new, folder, user, command, *system]
            if isolated
            else [*LIMITS.split(), "sh", "-c", command]
        )
        process = subprocess.Popen(
            argv,
            cwd=folder,
            env=env,
            stdin=stdin,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return code, output.read(2**20).decode(errors="replace")


@lru_cache
def can_isolate() -> bool:
    """Whether there is a sandbox on this machine."""
    with tempfile.TemporaryDirectory() as folder, suppress(OSError):
        return sandboxed("true", folder)[0] == 0
    return False
