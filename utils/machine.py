"""Checks the NVIDIA driver, measures free memory, and says how to install vLLM."""

from configurator import UserError

import os
import re
import resource
from pathlib import Path

DRIVER_FILE = Path("/proc/driver/nvidia/version")
# Maps a CUDA major version to the oldest driver that supports the version.
# Source: NVIDIA's table of minor version compatibility.
MIN_DRIVERS = {"12": 525, "13": 580}
MEMORY_FILE = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")
VLLM_HINT = (
    "pip install -r requirements.txt on a machine with a GPU, make vllm on others, or use "
    "--engine=torch; on a laptop add config/models/tiny.py, which selects the torch engine"
)


def check_driver(cuda_version: str | None) -> None:
    """Check that the NVIDIA driver of this machine is new enough for torch.

    If the driver is too old, torch sees no GPU. A run with device=auto would then use the CPU.

    Args: cuda_version: the CUDA version of torch, such as "13.0"; None if torch is for CPUs only.
    Raises: UserError.
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


def free_cpu_memory() -> int:
    """Estimate how many bytes of CPU memory this process can still take without swapping.

    The result is the smallest of three limits: free memory of the machine (all memory on macOS),
    free memory of the container (cgroup v2), and `ulimit -v`.
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
