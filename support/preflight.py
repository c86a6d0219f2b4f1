"""Checks before a run: the model, the engine, W&B, the NVIDIA driver and free memory."""

from configurator import Config, UserError

import importlib.util
import os
import platform
import re
import resource
import sys
from pathlib import Path

from support.model_folder import read_description

BASE = Path(__file__).resolve().parent.parent / "base"
DRIVER_FILE = Path("/proc/driver/nvidia/version")
# CUDA version -> oldest driver that runs it (NVIDIA's table of minor version compatibility)
MIN_DRIVERS = {"12": 525, "13": 580}
MEMORY_FILE = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")  # where Linux shows the limits of a container
HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")  # the form of a name on the Hugging Face hub
VLLM_HINT = (
    "pip install -r requirements.txt on a machine with a GPU, make vllm on others, or use "
    "--engine=torch; on a laptop add config/models/tiny.py, which selects the torch engine"
)


def check_installed(config: Config) -> None:
    """Check that vLLM is installed if the config selects it. Raises: UserError."""
    if config.engine != "vllm" or importlib.util.find_spec("vllm") is not None:
        return
    if sys.version_info < (3, 11):
        version = platform.python_version()
        raise UserError(
            f"engine='vllm' needs Python 3.11 or newer, and this is {version}; make a new .venv "
            "with make clean and make PYTHON=python3.12, or use --engine=torch"
        )
    raise UserError(f"engine='vllm', but vLLM is not installed; {VLLM_HINT}")


def check_wandb(project: str) -> None:
    """Check that W&B can be used, if a project is given. Raises: UserError."""
    if not project:
        return
    illegal = set(project) & set("/\\#?%:")
    if illegal or len(project) > 128 or not project.isprintable():
        raise UserError(
            "wandb must be the name of a project, at most 128 characters, none of them invisible "
            f"or among / \\ # ? % :, got {project!r}; WANDB_ENTITY=NAME selects a team"
        )
    found = importlib.util.find_spec("wandb")
    # W&B writes into a folder wandb/. Python takes this folder for a package without code.
    if found is None or found.origin is None:
        raise UserError(
            f"wandb={project!r}, but wandb is not installed; pip install -r requirements/wandb.txt"
        )


def check_driver(cuda_version: str | None) -> None:
    """Check that the NVIDIA driver of this machine is new enough for torch.

    torch sees no GPU if the driver is too old, and then a run would start on the CPU.

    Args: cuda_version: of the installed torch, such as "13.0"; None for a build for CPUs.
    Raises: UserError if the driver is too old.
    """
    major = (cuda_version or "").split(".")[0]
    if major not in MIN_DRIVERS or not DRIVER_FILE.is_file():
        return
    found = re.search(r"Kernel Module.*?\s(\d+)\.\d+", DRIVER_FILE.read_text(encoding="utf-8"))
    if found and int(found[1]) < MIN_DRIVERS[major]:
        raise UserError(
            f"the NVIDIA driver is of release {found[1]}, and torch for CUDA {cuda_version} needs "
            f"{MIN_DRIVERS[major]} or newer; update the driver, or use --device=cpu"
        )


def free_memory() -> int:
    """Bytes of memory that this process can still take without swapping.

    It is the smallest of what the machine has left, what the container (cgroup v2) has left, and
    the limit of `ulimit -v`. macOS reports no free memory: there the first is all memory.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    if MEMORY_FILE.is_file():
        found = re.search(r"MemAvailable:\s+(\d+) kB", MEMORY_FILE.read_text(encoding="utf-8"))
        limits += [int(found[1]) * 1024] if found else []
    limit_file = CONTAINER / "memory.max"
    if limit_file.is_file() and limit_file.read_text(encoding="utf-8").strip() != "max":
        limit = int(limit_file.read_text(encoding="utf-8"))
        used = int((CONTAINER / "memory.current").read_text(encoding="utf-8"))
        stat = (CONTAINER / "memory.stat").read_text(encoding="utf-8")
        cached = int(re.search(r"^inactive_file (\d+)$", stat, re.M)[1])  # freed when needed
        limits.append(limit - used + cached)
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    return min(limits)


def find_model(name: str) -> str:
    """The folder of a local model, or the unchanged name of a model on the hub.

    Args: name: "tiny", a folder, or a name on the hub. A name that looks like a folder is never
        looked up on the hub.
    Raises: UserError if a folder does not exist, or holds no model of a supported type.
    """
    if name == "tiny":
        return str(BASE)
    if not _looks_like_folder(name):
        return name
    folder = os.path.expanduser(name)
    if not Path(folder, "config.json").is_file():
        raise UserError(f"model={folder!r} is not a model folder: it has no config.json")
    for inner in ("policy", "best", "model"):
        if Path(folder, inner, "config.json").is_file():
            raise UserError(
                f"model={folder!r} is the folder of a run; give its model, {folder}/{inner}"
            )
    read_description(Path(folder))
    return folder


def _looks_like_folder(name: str) -> bool:
    """Whether a name looks like a folder: it begins with out/, the folder around it exists, or it
    does not have the form USER/MODEL of a name on the hub."""
    in_known_folder = name.startswith("out/") or Path(name).parent.is_dir()
    return in_known_folder or not HUB_NAME.fullmatch(name)
