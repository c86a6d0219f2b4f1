"""Keep the tests away from the runs, home folder, caches and settings of the user.

Libraries such as huggingface_hub read the variables below when they are imported. So
shared_fixtures.py, which pytest loads first, imports this file.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Tests only read Chromium and the games of ALFWorld, so both are used where they are installed.
CACHE = Path.home() / ".cache"
os.environ.setdefault("PLAYWRIGHT_BROWSERS_PATH", str(CACHE / "ms-playwright"))
os.environ.setdefault("ALFWORLD_DATA", str(CACHE / "alfworld"))
# vLLM caches properties of a model class by the hash of its code; finding them takes 13 CPU-s.
os.environ["VLLM_CACHE_ROOT"] = str(Path(sys.prefix, "vllm_cache"))
HOME = tempfile.TemporaryDirectory(prefix="nanoragen_home_")
os.environ["HOME"] = HOME.name
SETTINGS_OF_A_USER = (  # prefixes of the environment variables that this file removes
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
    """Work in a new folder with links to the project's files, except out/, wandb/ and hidden ones.

    Commands of a test find `train.py`, `config/` and `base` there. Runs that they write to the
    default place, such as out/NAME, are deleted with the folder."""
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
