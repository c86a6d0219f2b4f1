"""A sandbox for shell commands that a policy writes.

By default, a command runs in its own Linux namespaces, without network. The command cannot see
other processes. It can read the system folders and the Python interpreter. It can change files
only in the folder of its task and in a /tmp of its own, which is empty at first.
"""

import errno
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import IO

MAX_SECONDS = 60  # for a command
MAX_OUTPUT = 2**20  # `run_sandboxed` returns at most this many bytes of output
MAX_FILES = 100_000  # files and folders that the folder of a task may hold
MAX_BYTES = 2**31  # bytes on disk that the folder of a task may hold
CHECK_S = 1.0  # seconds between two checks of the folder while a command runs
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives")
LIMITS = (
    "prlimit",
    "--nproc=64",  # processes
    "--as=2147483648",  # bytes of memory for each process
    "--fsize=67108864",  # bytes of each file
    "--core=0",
)
ENVIRONMENT = {
    "PATH": f"{sys.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    # Python writes no bytecode files. Otherwise Python could run stale bytecode after an edit, so
    # the edit could have no effect.
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}

# A shell script that builds a new root file system, enters it, and runs a command without any
# privilege. The script takes these arguments in order: an empty folder for the root, the folder of
# the task, a user id ("" for the present user), the command, and the folders to mount read-only.
ISOLATE = """
set -e
umask 022
new=$1
folder=$2
user=$3
command=$4
shift 4

# an empty root in memory
mount -t tmpfs -o mode=755,size=64m,nr_inodes=20k tmpfs "$new"
cd "$new"
mkdir old proc dev tmp testbed

# links such as /bin -> usr/bin
for name in bin sbin lib lib32 lib64; do
    [ ! -L /$name ] || cp -P /$name .
done

mount -t proc -o ro,nosuid,nodev,noexec proc proc
mount -t tmpfs -o size=64m,nr_inodes=20k,mode=1777,nosuid,nodev tmpfs tmp

# system and interpreter, read-only
for path; do
    mkdir -p ".$path"
    mount --bind "$path" ".$path"
    mount -o remount,bind,ro,nosuid,nodev ".$path"
done

for name in null zero random urandom; do
    : > dev/$name
    mount --bind /dev/$name dev/$name
done

# the folder of the task
mount --bind "$folder" testbed
[ -z "$user" ] || chown -hR "$user" testbed

# enter the new root, forget the old one
pivot_root . old
umount -l old
rmdir old
mount -o remount,bind,ro /
cd /testbed

code=0
LIMITS setpriv ${user:+--reuid=$user --regid=$user --clear-groups} \\
    --no-new-privs --inh-caps=-all --bounding-set=-all sh -c "$command" || code=$?
exit $code
""".replace("LIMITS", " ".join(LIMITS))


class FolderFull(Exception):
    """The folder of a task has become too large or too deep."""


def run_sandboxed(
    command: str, folder: str, stdin: bytes = b"", *, isolated: bool = True
) -> tuple[int | None, str]:
    """Run a shell command in a folder.

    Args:
        folder: the working directory. An isolated command can change no other folder of the host.
        isolated: if False, the command runs as the present user, with resource limits only. These
            limits are no security boundary. Without isolation, a process that leaves the command's
            process group keeps running after the command.
    Returns: the exit status (None if the command was killed after MAX_SECONDS), and the first
        MAX_OUTPUT bytes of the output.
    Raises: FolderFull if the folder holds more than MAX_FILES files or MAX_BYTES bytes, or is
        nested too deep.
    """
    with (
        tempfile.TemporaryDirectory() as new_root,
        tempfile.TemporaryFile() as stdin_file,
        tempfile.TemporaryFile() as output,
    ):
        stdin_file.write(stdin)
        stdin_file.seek(0)
        arguments = [*LIMITS, "sh", "-c", command]
        if isolated:
            arguments = _isolated(command, folder, new_root)
        code = _run(arguments, folder, stdin_file, output)
        check_size(folder, finished=True)
        output.seek(0)
        return code, output.read(MAX_OUTPUT).decode(errors="replace")


def _isolated(command: str, folder: str, new_root: str) -> list[str]:
    unshare = ["unshare", "-mnpiuf", "--kill-child"]
    user = ""
    if os.geteuid() == 0:
        # The command runs with the user id `user`, and ISOLATE makes `user` the owner of `folder`.
        # `user` is computed from the inode of `folder`, so `user` most likely owns no other folder.
        user = str(2**15 + os.stat(folder).st_ino % 2**14)
    else:
        unshare.append("-Ur")
    real_folders = []
    for path in SYSTEM_FOLDERS:
        if os.path.isdir(path) and not os.path.islink(path):
            real_folders.append(path)
    read_only = dict.fromkeys([*real_folders, sys.base_prefix, sys.prefix])
    return [*unshare, "sh", "-c", ISOLATE, "sh", new_root, folder, user, command, *read_only]


def _run(arguments: list[str], folder: str, stdin: IO, output: IO) -> int | None:
    """Run a process, and kill its process group afterwards.

    Returns: the exit status, or None if the process was killed after MAX_SECONDS.
    Raises: FolderFull if the folder becomes too large or too deep."""
    process = subprocess.Popen(
        arguments,
        cwd=folder,
        env=ENVIRONMENT,
        stdin=stdin,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    deadline = time.monotonic() + MAX_SECONDS
    try:
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):
                process.wait(min(CHECK_S, deadline - time.monotonic()))
                break
            check_size(folder, finished=False)
        return process.poll()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@lru_cache
def can_isolate() -> bool:
    with tempfile.TemporaryDirectory() as folder, suppress(OSError):
        code, _ = run_sandboxed("true", folder)
        return code == 0
    return False


# ---------- files that a command leaves behind


class TaskFolder:
    """A temporary folder, which is removed by `cleanup` or at the end of the object's life.

    tempfile.TemporaryDirectory removes folders by recursion, so it could fail to remove deeply
    nested folders.
    """

    def __init__(self):
        self.name = tempfile.mkdtemp()
        self._finalizer = weakref.finalize(self, remove_folder, self.name)

    def cleanup(self) -> None:
        """Remove the folder now."""
        self._finalizer()


def remove_folder(folder: str) -> None:
    """Remove a folder without recursion, by moving nested folders up."""
    prefix = secrets.token_hex(8)  # random, so that no file has this prefix
    numbers = count()
    while names := os.listdir(folder):
        for name in names:
            path = f"{folder}/{name}"
            if not _is_real_folder(path):
                os.unlink(path)
                continue
            os.chmod(path, 0o700)
            for child in os.listdir(path):
                child_path = f"{path}/{child}"
                if _is_real_folder(child_path):
                    os.chmod(child_path, 0o700)
                    os.rename(child_path, f"{folder}/{prefix}{next(numbers)}")
                else:
                    os.unlink(child_path)
            os.rmdir(path)
    os.rmdir(folder)


def _is_real_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def check_size(folder: str, *, finished: bool) -> None:
    """Check the number of files and bytes in a folder and its subfolders.

    A command can nest folders beyond Python's recursion limit, so the function does not recurse.

    Args:
        finished: True after the command has ended. If True, the function also makes unreadable
            folders readable, to count their files and bytes.
    Raises: FolderFull if the folder holds more than MAX_FILES files or MAX_BYTES bytes, or is
        nested too deep.
    """
    num_files = 0
    num_bytes = 0
    pending = [folder]
    while pending:
        path = pending.pop()
        try:
            if finished:
                os.chmod(path, 0o700 | os.stat(path).st_mode)
            with os.scandir(path) as entries:
                for entry in entries:
                    num_files += 1
                    with suppress(FileNotFoundError):
                        num_bytes += 512 * entry.stat(follow_symlinks=False).st_blocks
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    if num_files > MAX_FILES or num_bytes > MAX_BYTES:
                        raise FolderFull(
                            f"The folder holds more than {MAX_FILES} files or {MAX_BYTES} bytes. "
                            "The game is over."
                        )
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # the command removed or replaced the folder, or made it unreadable
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise FolderFull("The folder is nested too deep. The game is over.") from error
