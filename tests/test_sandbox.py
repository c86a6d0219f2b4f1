"""
Tests of the sandbox with hostile programs, and of SWE-Gym's rows on a small repository.

    python -m pytest -q tests/test_sandbox.py
"""

from configurator import UserError

import json
import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from envs import make_env
from worlds import sandbox, swe

needs_sandbox = pytest.mark.skipif(
    not sandbox.can_isolate(), reason="no user namespaces here, so no sandbox"
)

RIGHT = """def add(a, b):
    return a + b


def mul(a, b):
    return a * b


def same(a):
    return a
"""
WRONG = RIGHT.replace("a + b", "a - b").replace("a * b", "a / b")
TESTS = "from calc import same\n\n\ndef test_same():\n    assert same(2) == 2\n"
PATCH = """--- a/tests/test_calc.py
+++ b/tests/test_calc.py
@@ -1,5 +1,13 @@
-from calc import same
+from calc import add, mul, same
 
 
 def test_same():
     assert same(2) == 2
+
+
+def test_add():
+    assert add(2, 5) == 7
+
+
+def test_mul():
+    assert mul(2, 5) == 10
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A data set of one row, and its checkout, whose last commit holds the answer."""
    folder = tmp_path_factory.mktemp("rows")
    repo = folder / "calc"
    (repo / "tests").mkdir(parents=True)
    (repo / "conftest.py").write_text("")

    def git(*words):
        author = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        command = ["git", "-C", repo, *author, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    for source in (WRONG, RIGHT):
        (repo / "calc.py").write_text(source)
        (repo / "tests/test_calc.py").write_text(TESTS)
        git("add", "-A")
        git("commit", "-qm", "state")
    row = {
        "instance_id": "calc-1",
        "repo": "someone/calc",
        "base_commit": git("rev-parse", "HEAD~1").strip(),
        "patch": git("diff", "HEAD~1", "HEAD"),
        "problem_statement": "add and mul are wrong",
        "test_patch": PATCH,
        "FAIL_TO_PASS": ["tests/test_calc.py::test_add", "tests/test_calc.py::test_mul"],
        "PASS_TO_PASS": ["tests/test_calc.py::test_same"],
    }
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    return folder / "rows.jsonl"


def opened(rows, options="", **more):
    env = make_env(f"swe:rows={rows}{options}", **more)
    env.start(env.draw(np.random.default_rng(0)), [0])
    return env


# ---------- the sandbox

CONNECT = 'python -c "import socket; socket.{call}"'
TCP = "create_connection(('127.0.0.1', {port}), 2)"
UNIX = "socket(socket.AF_UNIX).connect('{folder}/door')"
REMOUNT = "mount -o remount,bind,rw /usr && echo owned > /usr/owned"
# the aim of a program -> a shell command; {secret} is a file outside of the sandbox, {port} and
# {folder}/door are sockets that listen outside, {pid} is a process outside
HOSTILE = {
    "fork bomb": "bomb() {{ bomb | bomb & }}; bomb; sleep 1; exit 1",
    "fork bomb in Python": "python -c 'import os\nwhile True: os.fork()'",
    "endless loop": "while :; do :; done",
    "deaf to signals": "trap '' TERM INT HUP; sleep 54321; sleep 54321",
    "one large block of memory": "python -c 'bytearray(10**11)'",
    "ever more memory": "python -c 'x = []\nwhile True: x.append(bytearray(10**7))'",
    "memory through /tmp": "head -c 1G /dev/zero > /tmp/large",
    "a huge file": "head -c 1G /dev/zero > large",
    "huge output": "yes",
    "huge output in Python": "python -c 'while True: print(\"x\" * 10**6)'",
    "read a file outside": "cat {secret}",
    "write a file outside": "echo owned > {secret}",
    "write to the system": "echo owned > /usr/bin/owned",
    "symlink out of the folder": "ln -s {folder} out && echo owned > out/secret",
    "symlink to the root": "ln -s / out && echo owned > out/usr/owned",
    "the root of another process": "cat /proc/1/root{secret}",
    "a connection": CONNECT.replace("{call}", TCP),
    "a socket of the file system": CONNECT.replace("{call}", UNIX),
    "kill the parent": "kill -9 $PPID; kill -9 1; kill -9 -1; exit 1",
    "kill by the outer number": "kill -9 {pid}",
    "outlive the command": "setsid sh -c 'sleep 54321' & setsid sleep 54321 & exit 1",
    "write after all": "mount -o remount,rw /usr && echo owned > /usr/owned",
    "namespaces of its own": f"unshare -Urm sh -c '{REMOUNT}'",
    "become someone": "setpriv --reuid=0 --clear-groups cat {secret} || su -c 'cat {secret}'",
    "a device": "mknod disk b 259 0 && cat disk",
    "settings of the kernel": "echo 1 > /proc/sys/vm/drop_caches || echo b > /proc/sysrq-trigger",
}


def commands_that_run():
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # the process has ended
            continue
    return lines


def check_nobody_runs():
    """A killed process may still be listed for a moment."""
    deadline = time.monotonic() + 10
    while any("54321" in line for line in commands_that_run()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("aim", HOSTILE)
def test_hostile_programs_end_as_failed_turns(aim, rows, tmp_path, monkeypatch):
    endless = aim in ("endless loop", "deaf to signals", "ever more memory")
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 1 if endless else 30)
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as door:
        server.setblocking(False)
        door.bind(str(tmp_path / "door"))
        door.listen()
        port = server.getsockname()[1]
        command = HOSTILE[aim].format(secret=secret, folder=tmp_path, port=port, pid=os.getpid())
        env = opened(rows)
        step = env.step(f"echo begun; {command}")
        with pytest.raises(BlockingIOError):
            server.accept()  # no program connected
    assert (step.success, step.valid, step.effective) == (False, True, False)
    assert step.reward == 0
    assert not step.terminated
    assert len(step.observation) < 2200
    assert "hidden" not in env.output
    assert len(env.output) <= 2**20
    assert endless or "begun" in env.output

    files = {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
    assert files == {"secret": "hidden"}
    assert not any(Path(root, "owned").exists() for root in ("/usr", "/usr/bin", "/"))
    check_nobody_runs()
    assert Path(env.home.name, "calc.py").read_text() == WRONG
    env.home.cleanup()
    assert not Path(env.home.name).exists()


@needs_sandbox
def test_what_a_command_sees(tmp_path):
    folder = str(tmp_path)
    command = "pwd; ls / /dev; wc -l < /proc/net/dev; env; cat; exit 7"
    code, output = sandbox.run_sandboxed(command, folder, b"given")
    assert code == 7
    assert output.startswith("/testbed\n")
    assert output.endswith("given")
    assert " home " not in output
    assert os.environ.get("USER", "nobody") not in output

    command = "python -c 'import os; print(len(os.listdir(\"/sys\")))'"
    code, output = sandbox.run_sandboxed(command, folder)
    assert code == 1
    assert "No such file" in output

    _, output = sandbox.run_sandboxed("echo left > behind; grep CapBnd /proc/self/status", folder)
    assert output.split() == ["CapBnd:", "0" * 16]
    assert (tmp_path / "behind").read_text() == "left\n"


@needs_sandbox
def test_it_works_in_threads(tmp_path):
    found = {}
    folders = [tmp_path / str(i) for i in range(4)]

    def work(folder):
        folder.mkdir()
        found[folder] = sandbox.run_sandboxed(f"echo {folder.name} > mine; cat mine", str(folder))

    threads = [threading.Thread(target=work, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {folder: (0, f"{folder.name}\n") for folder in folders}


def test_without_a_sandbox_it_runs_only_when_told_so(rows, monkeypatch):
    monkeypatch.setattr(swe, "can_isolate", lambda: False)
    with pytest.raises(ValueError, match="resource limits alone are no security boundary"):
        opened(rows)
    env = opened(rows, ",sandbox=none")
    assert env.blocking
    assert env.step("cat calc.py").effective
    assert env.output == WRONG
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 1)
    assert not env.step("sleep 54321").effective
    check_nobody_runs()


@pytest.mark.parametrize("option", ["reward=share", "sandbox=perhaps"])
def test_options_that_are_refused(rows, option):
    message = "swe wants reward binary or ratio, sandbox required or none"
    with pytest.raises(ValueError, match=message):
        opened(rows, f",{option}")


# ---------- rows

FIX_ADD = "sed -i 's/a - b/a + b/' calc.py"
FIX_MUL = "sed -i 's|a / b|a * b|' calc.py"
BREAK_SAME = "sed -i 's/return a$/return 0/' calc.py"
OWN_TESTS = "rm -r tests; mkdir tests; echo 'def test_add(): pass' > tests/test_calc.py"
SHOW_OUTPUT = "printf '[pytest]\\naddopts = -s' > pytest.ini"
PRINT_ZEROS = "[os.write(i, bytes(2**21) + bytes([10])) for i in (2, 1)]"


@needs_sandbox
@pytest.mark.parametrize(
    "commands, ratio",
    [
        ([FIX_ADD], 0.5),  # one of the two tests that failed
        pytest.param([], 0.0, marks=pytest.mark.slow),
        pytest.param([FIX_ADD, FIX_MUL], 1.0, marks=pytest.mark.slow),
        # 2 of 3 tests pass, as after one fix
        pytest.param([FIX_ADD, FIX_MUL, BREAK_SAME], 0.5, marks=pytest.mark.slow),
        pytest.param([BREAK_SAME], 0.0, marks=pytest.mark.slow),
        # the tests are restored
        pytest.param([OWN_TESTS], 0.0, marks=pytest.mark.slow),
        pytest.param(["rm -r tests; ln -s / tests"], 0.0, marks=pytest.mark.slow),
        # there is no stale bytecode
        pytest.param(
            [f"python -c 'import calc'; {FIX_ADD}; {FIX_MUL}"], 1.0, marks=pytest.mark.slow
        ),
        # the output of the code, zero bytes too, hides no line of the report
        pytest.param(
            [FIX_ADD, FIX_MUL, SHOW_OUTPUT, f"sed -i '1i import os; {PRINT_ZEROS}' calc.py"],
            1.0,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_ratio_leaves_out_what_the_unpatched_code_passes(rows, commands, ratio):
    env = opened(rows, ",reward=ratio")
    assert all(env.step(command).reward == 0 for command in commands)
    step = env.step("submit")
    assert step.reward == pytest.approx(ratio)
    assert step.terminated
    assert step.success == (ratio == 1)


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("mask", [0o027, 0o077])
def test_a_strict_umask_changes_nothing(rows, mask):
    before = os.umask(mask)
    try:
        env = opened(rows)
        assert [env.step(command).reward for command in env.plan(2, 1)] == [0, 1]
    finally:
        os.umask(before)


@needs_sandbox
def test_the_plan_is_the_rest_of_it(rows):
    env = opened(rows)
    patch, submit = env.plan(2, 1)
    env.step("ls")
    assert env.plan(2, 1) == [patch, submit]
    env.step(patch)
    assert env.plan(2, 1) == [submit]


@needs_sandbox
def test_a_patch_that_the_parser_cuts_is_tried_once(rows):
    env = opened(rows)
    env.patch_command = env.patch_command.replace("a + b", "a || b")
    env.step(env.plan(2, 1)[0].split("||")[0].strip())
    assert env.plan(2, 1) == ["submit"]


@needs_sandbox
@pytest.mark.parametrize(
    "change", [{"instance_id": None}, {"FAIL_TO_PASS": '["tests/test_calc.py::test_add"]'}]
)
def test_rows_of_another_kind_are_refused(rows, tmp_path, change):
    row = json.loads(rows.read_text()) | change
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (key,) = change
    message = (
        f"a row of SWE-Gym must have texts and lists of tests; {key} is missing or has another "
        "type in '"
    )
    with pytest.raises(ValueError, match=message):
        opened(path)


def test_files_and_checkouts_that_are_missing(rows, tmp_path):
    path = tmp_path / "rows.jsonl"
    with pytest.raises(UserError, match="swe wants rows=PATH of a file of JSON lines: "):
        opened(path, ",sandbox=none")
    path.write_text("no row\n")
    with pytest.raises(UserError, match="a row of SWE-Gym is a line of JSON, got 'no row'"):
        opened(path, ",sandbox=none")
    path.write_text(rows.read_text())
    with pytest.raises(UserError, match="swe wants a git checkout of someone/calc with commit "):
        opened(path, ",sandbox=none")


@needs_sandbox
def test_a_row_by_hand(rows):
    env = opened(rows)
    assert env.observe() == "Task: add and mul are wrong"
    assert env.instance == ("swe", "calc-1")
    files = env.step("ls -A").observation.split("\n")[1:]
    assert files == ["calc.py", "conftest.py", "tests"]  # and no history
    assert env.random(3, np.random.default_rng(0))
    assert env.greedy() == "submit"
    assert env.statements() == []
    assert not env.step("cat \0").valid
    assert not env.step("x" * 100_001).valid

    env = opened(rows)
    assert env.optimal_length() == 2
    assert env.plan(2, 1)[1] == "submit"
    for command in env.plan(2, 1):
        step = env.step(command)
    assert step.success
    assert step.reward == 1
    assert env.plan(2, 1) == []

    env = opened(rows, max_actions=2)
    env.step(FIX_ADD)
    step = env.step(FIX_MUL)  # the last action submits as well
    assert step.terminated
    assert step.success
    assert step.reward == 1
