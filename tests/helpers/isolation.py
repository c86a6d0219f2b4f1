"""Keep the tests from changing the user's runs, home folder, caches and settings.

Import this file first: libraries such as huggingface_hub read environment variables when imported.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Take Chromium and the ALFWorld games from the user's cache, because tests only read them.
CACHE = Path.home() / ".cache"
os.environ.setdefault("PLAYWRIGHT_BROWSERS_PATH", str(CACHE / "ms-playwright"))
os.environ.setdefault("ALFWORLD_DATA", str(CACHE / "alfworld"))
# Keep the cache of vLLM between test runs: filling it takes 13 CPU seconds.
os.environ["VLLM_CACHE_ROOT"] = str(Path(sys.prefix, "vllm_cache"))
HOME = tempfile.TemporaryDirectory(prefix="nanoragen_home_")
os.environ["HOME"] = HOME.name
SETTINGS_OF_A_USER = (  # prefixes of environment variables to remove
    "HF_",
    "HUGGING_FACE_",
    "NANORAGEN_TRACEBACK",
    "OPENAI_",
    "TRANSFORMERS_",
    "VLLM_BATCH_INVARIANT",
    "WANDB_",
    "XDG_CACHE_",
    "XDG_CONFIG_",
    "XDG_DATA_",
)
for _name in list(os.environ):
    if _name.startswith(SETTINGS_OF_A_USER):
        del os.environ[_name]


@contextmanager
def own_folder() -> Iterator[None]:
    """Work in a new folder that has links to the project's files, but not to out/, wandb/ or
    hidden files."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="nanoragen_test_") as folder:
        for path in ROOT.iterdir():
            if not path.name.startswith(".") and path.name not in ("out", "wandb"):
                Path(folder, path.name).symlink_to(path)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
