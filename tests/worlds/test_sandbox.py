"""Tests of worlds/code: sandbox.py with hostile programs, and swe.py with a small project."""

from configurator import UserError

import io
import json
import os
import socket
import subprocess
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from envs import make_env
from worlds.code import sandbox, swe

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
    """Return the file of a data set of one row. A git checkout beside it has the fix at HEAD."""
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
# Maps an attack to its shell command. The placeholders stand for things outside the sandbox:
# {secret} is a file, {port} is a TCP port that listens, {folder}/door is a Unix socket that
# listens, and {pid} is a process.
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
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            # pytest-xdist writes the running test's id into the process title of its worker. The id
            # can contain "sleep 54321" from a parameter of a test below.
            if "pytest-xdist" not in line:
                lines.append(line)
        except OSError:
            continue
    return lines


def check_no_sleep_runs():
    """Wait until no `sleep 54321` runs. A killed process may still be listed for a moment."""
    for _ in range(600):
        running = [line for line in commands_that_run() if "sleep 54321" in line]
        if not running:
            return
        time.sleep(0.05)
    pytest.fail(f"still running: {running}")


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
            server.accept()
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
    check_no_sleep_runs()
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
    check_no_sleep_runs()


@pytest.mark.parametrize("option", ["reward=share", "sandbox=perhaps"])
def test_options_that_are_refused(rows, option):
    message = "swe needs reward binary or ratio, sandbox required or none"
    with pytest.raises(ValueError, match=message):
        opened(rows, f",{option}")


# ---------- what commands leave behind

NESTED = 'python -c \'import os\nfor i in range({}): os.mkdir("d"); os.chdir("d")\''
UNREADABLE = "mkdir -p a/b/c; touch a/b/c/file; chmod 0 a/b/c a/b a"
LINKS = "ln -s / root; mkdir odd; touch \"odd/$(printf '\\377\\n')\" odd/-rf; mkfifo odd/pipe"


@pytest.mark.slow
@needs_sandbox
def test_a_folder_is_removed_whatever_is_in_it(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("here")
    folder = sandbox.TaskFolder()
    for command in (NESTED.format(1100), UNREADABLE, LINKS, f"ln -s {tmp_path} out"):
        code, output = sandbox.run_sandboxed(command, folder.name)
        assert (code, output) == (0, "")
    folder.cleanup()
    assert not Path(folder.name).exists()
    assert precious.read_text() == "here"
    folder.cleanup()


def test_folders_without_a_sandbox_are_removed_too():
    folder = sandbox.TaskFolder()
    path = Path(folder.name)
    for i in range(1050):
        path /= "d"
        path.mkdir()
        if i == 1000:
            middle = path
    middle.chmod(0)
    del folder
    assert not path.exists()
    assert middle.parts[1] == "tmp" and not Path(*middle.parts[:4]).exists()


FULL = "The folder holds more than 200 files or 16777216 bytes. The game is over."


@needs_sandbox
@pytest.mark.parametrize(
    "command",
    [
        "seq 300 | xargs touch; chmod 0 .",
        "mkdir hidden; cd hidden; seq 300 | xargs touch; cd ..; chmod 0 hidden",
        "head -c 20M /dev/urandom > large; sleep 54321",  # the file is noticed during the sleep
    ],
)
def test_a_command_that_fills_the_folder_ends_the_game(rows, command, monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_FILES", 200)
    monkeypatch.setattr(sandbox, "MAX_BYTES", 2**24)
    monkeypatch.setattr(sandbox, "CHECK_S", 0.1)
    env = opened(rows)
    step = env.step(command)
    assert (step.reward, step.terminated, step.success, step.effective) == (0, True, False, False)
    assert step.observation == f"Task: add and mul are wrong\n{FULL}"
    assert not Path(env.home.name).exists()
    check_no_sleep_runs()


@pytest.mark.slow
@needs_sandbox
def test_a_command_that_nests_folders_too_deep_ends_the_game(rows):
    env = opened(rows)
    step = env.step(NESTED.format(3000))
    assert step.terminated and not step.success
    assert env.output == "The folder is nested too deep. The game is over."
    assert not Path(env.home.name).exists()


@needs_sandbox
def test_the_folders_in_memory_hold_few_files(tmp_path):
    code, output = sandbox.run_sandboxed("cd /tmp; seq 30000 | xargs touch", str(tmp_path))
    assert code != 0
    assert "No space left on device" in output


# ---------- checkouts of somebody else


def hostile_checkout(folder, settings):
    """Make a git checkout whose git `settings` may run programs.

    Its .gitattributes asks git to apply filters to all files.

    Returns: the folder of the checkout, its commit, and a dict that maps file names to texts.
    """
    repo = folder / "calc"
    repo.mkdir()
    files = {
        "calc.py": "one = 1\n",
        "version": "$Format:%H$\n",
        "left_out": "here\n",
        ".gitattributes": "* filter=evil text eol=crlf ident working-tree-encoding=UTF-16\n"
        "[attr]gone export-ignore\nversion export-subst\nleft_out gone\n",
    }
    author = ["-c", "user.name=x", "-c", "user.email=x@example.org"]

    def git(*words):
        command = ["git", "-C", repo, *author, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    for name, text in files.items():
        (repo / name).write_text(text)
    (repo / ".gitattributes").rename(folder / "attributes")
    git("add", "-A")
    (folder / "attributes").rename(repo / ".gitattributes")
    git("update-index", "--add", "--cacheinfo", f"100644,{blob_of(git, repo)},.gitattributes")
    git("commit", "-qm", "state")
    commit = git("rev-parse", "HEAD").strip()
    with (repo / ".git/config").open("a") as file:
        file.write(settings)
    return repo, commit, files


def blob_of(git, repo):
    return git("hash-object", "-w", "--no-filters", repo / ".gitattributes").strip()


SETTINGS = {
    "filters": '[filter "evil"]\nclean = {run}\nsmudge = {run}\nprocess = {run}\nrequired\n',
    "a monitor": "[core]\nfsmonitor = {run}\nhooksPath = {folder}\n",
    "programs": "[core]\neditor = {run}\npager = {run}\nsshCommand = {run}\n"
    '[tar "tar"]\ncommand = {run}\n[diff "evil"]\ntextconv = {run}\n',
    "an included file": "[include]\npath = {folder}/more\n"
    '[includeIf "gitdir:/"]\npath = {folder}/more\n',
    "another worktree": "[core]\nworktree = /\nbare = false\nattributesFile = {folder}/more\n",
    "a remote to fetch from": '[remote "x"]\nurl = ext::{run}\npromisor = true\n'
    "[extensions]\npartialClone = x\n[protocol]\nallow = always\n",
    "no settings at all": "\n[[[\n",
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_settings_of_a_checkout_have_no_effect(kind, tmp_path):
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/owned\ncat\n")
    program.chmod(0o755)
    (tmp_path / "more").write_text(SETTINGS["filters"].format(run=program))
    settings = SETTINGS[kind].format(run=program, folder=tmp_path)
    repo, commit, files = hostile_checkout(tmp_path, settings)
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        (repo / ".git/hooks" / hook).unlink(missing_ok=True)
        (repo / ".git/hooks" / hook).symlink_to(program)
    (repo / ".git/info/attributes").write_text("* filter=evil export-ignore\n")
    archive = swe.archive_commit(repo, commit)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        found = {name: tar.extractfile(name).read().decode() for name in tar.getnames()}
    assert found == files
    assert not (tmp_path / "owned").exists()


def test_a_missing_commit_is_not_fetched(tmp_path):
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/owned\n")
    program.chmod(0o755)
    settings = SETTINGS["a remote to fetch from"].format(run=program)
    repo, _, _ = hostile_checkout(tmp_path, settings)
    with pytest.raises(ValueError, match="fatal: not a tree object: aaaaaaaaaa"):
        swe.archive_commit(repo, "a" * 40)
    assert not (tmp_path / "owned").exists()
    (repo / ".git").rename(repo / "git")
    (repo / ".git").write_text("gitdir: git\n")
    with pytest.raises(ValueError, match="there is no folder .*calc/.git/objects"):
        swe.archive_commit(repo, "a" * 40)


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
        ([FIX_ADD], 0.5),  # fixes one of two failing tests
        pytest.param([], 0.0, marks=pytest.mark.slow),
        pytest.param([FIX_ADD, FIX_MUL], 1.0, marks=pytest.mark.slow),
        # Two of three tests pass, as after FIX_ADD alone. Each failed test costs 1/2, because two
        # tests fail without a fix.
        pytest.param([FIX_ADD, FIX_MUL, BREAK_SAME], 0.5, marks=pytest.mark.slow),
        pytest.param([BREAK_SAME], 0.0, marks=pytest.mark.slow),
        # `submit` restores the tests
        pytest.param([OWN_TESTS], 0.0, marks=pytest.mark.slow),
        pytest.param(["rm -r tests; ln -s / tests"], 0.0, marks=pytest.mark.slow),
        pytest.param(
            [f"python -c 'import calc'; {FIX_ADD}; {FIX_MUL}"], 1.0, marks=pytest.mark.slow
        ),
        # the NUL bytes that calc.py prints must not hide any line of pytest's report
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


def with_test(name):
    return {"PASS_TO_PASS": [f"{name}::test_same"]}


OUTSIDE = "a test must be in a file below the folder of the repository, got "


@pytest.mark.parametrize(
    "change, mistake",
    [
        (
            {"base_commit": "--output=/tmp/x"},
            "base_commit must be 7 to 64 hexadecimal digits, got '",
        ),
        ({"base_commit": "HEAD"}, "base_commit must be 7 to 64 hexadecimal digits, got 'HEAD'"),
        ({"base_commit": "a" * 40 + "\n"}, "base_commit must be 7 to 64 hexadecimal digits"),
        ({"base_commit": "a" * 40 + ":x"}, "base_commit must be 7 to 64 hexadecimal digits"),
        ({"repo": "x/.."}, "repo must be OWNER/NAME, got 'x/..'"),
        ({"repo": "x/-C"}, "repo must be OWNER/NAME, got 'x/-C'"),
        ({"repo": "x/"}, "repo must be OWNER/NAME, got 'x/'"),
        ({"repo": "x/y\n"}, "repo must be OWNER/NAME, got 'x/y\\n'"),
        ({"patch": "a\nEND OF PATCH\ntouch x"}, "patch must not have the line 'END OF PATCH'"),
        ({"test_patch": "END OF PATCH"}, "test_patch must not have the line 'END OF PATCH'"),
        (
            {"test_patch": "a" * 100_001},
            "test_patch must have at most 100000 bytes because it becomes a command",
        ),
        (
            {"PASS_TO_PASS": [f"tests/test_{i:08}.py::x" for i in range(500)]},
            "the names of its test files must have at most 10000 bytes together",
        ),
        ({"patch": "a\0b"}, "patch must hold Unicode text without NUL"),
        ({"problem_statement": "\ud800"}, "problem_statement must hold Unicode text without NUL"),
        ({"instance_id": ""}, "instance_id must be a short name, got ''"),
        ({"instance_id": "\x1b[2J"}, "instance_id must be a short name, got '\\x1b[2J'"),
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS must name a test"),
        ({"FAIL_TO_PASS": [1]}, "FAIL_TO_PASS must hold Unicode text without NUL"),
        (with_test("/etc/passwd"), f"{OUTSIDE}'/etc/passwd'"),
        (with_test("../x.py"), f"{OUTSIDE}'../x.py'"),
        (with_test("a/../../x.py"), f"{OUTSIDE}'a/../../x.py'"),
        (with_test("--rootdir=/"), f"{OUTSIDE}'--rootdir=/'"),
        (with_test("@x"), f"{OUTSIDE}'@x'"),
        (with_test(""), f"{OUTSIDE}''"),
        (with_test("."), f"{OUTSIDE}'.'"),
        (with_test("a\nb"), f"{OUTSIDE}'a\\nb'"),
        ({"test_patch": "+++ b//etc/passwd\n"}, f"{OUTSIDE}'/etc/passwd'"),
        ({"test_patch": "x\n+++ b/../../x\n"}, f"{OUTSIDE}'../../x'"),
    ],
)
def test_hostile_rows_are_refused(rows, tmp_path, change, mistake):
    row = json.loads(rows.read_text()) | change
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError) as error:
        swe.read_rows(path)
    assert str(error.value).startswith(f"a row of SWE-Gym is refused: {mistake}")


def test_files_that_hold_no_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("[" * 100_000 + "\n")
    with pytest.raises(UserError, match=r"a row of SWE-Gym is a line of JSON, got '\[\["):
        swe.read_rows(path)
    path.write_bytes(b"\xff\n")
    with pytest.raises(UserError, match="swe needs rows=PATH of a file of JSON lines: 'utf-8'"):
        swe.read_rows(path)
    path.write_text("\n")
    with pytest.raises(
        UserError, match="swe needs rows=PATH of a file of JSON lines, and .* is empty"
    ):
        swe.read_rows(path)


def test_files_and_checkouts_that_are_missing(rows, tmp_path):
    path = tmp_path / "rows.jsonl"
    with pytest.raises(UserError, match="swe needs rows=PATH of a file of JSON lines: "):
        opened(path, ",sandbox=none")
    path.write_text("no row\n")
    with pytest.raises(UserError, match="a row of SWE-Gym is a line of JSON, got 'no row'"):
        opened(path, ",sandbox=none")
    path.write_text(rows.read_text())
    with pytest.raises(UserError, match="swe needs a git checkout of someone/calc with commit "):
        opened(path, ",sandbox=none")


@needs_sandbox
def test_a_row_by_hand(rows):
    env = opened(rows)
    assert env.observe() == "Task: add and mul are wrong"
    assert env.instance == ("swe", "calc-1")
    files = env.step("ls -A").observation.split("\n")[1:]
    assert files == ["calc.py", "conftest.py", "tests"]
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
    step = env.step(FIX_MUL)
    assert step.terminated
    assert step.success
    assert step.reward == 1
