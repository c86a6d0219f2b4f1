"""Fixtures and settings that several test files share."""

import importlib
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from configurator import Config, UserError

import isolation
import pytest
import torch

from support.no_effect import warn_unread
from tools.sft_config import SftConfig
from utils.model_folder import BASE

# Slow modules other than torch are imported inside the functions that use them.

# With one thread, torch always adds the terms of a sum in the same order.
torch.set_num_threads(1)
# If pytest is a background job of a shell, pytest and its child processes ignore Ctrl-C. Some tests
# send Ctrl-C to child processes, so Python's handler is restored.
signal.signal(signal.SIGINT, signal.default_int_handler)

# With three turns and short replies, a trajectory has about 320 tokens.
SMALL_RUN = dict(
    engine="torch",
    device="cpu",
    num_threads=1,
    env="frozenlake:success_rate=0.8",
    observation="relations",
    think=False,
    max_turns=3,
    actions_per_turn=2,
    actions_per_traj=6,
    max_response_tokens=12,
    max_context_tokens=640,
    micro_batch_tokens=4096,
    max_running=64,
    num_groups=2,
    group_size=4,
    batch_size=4,
    filter_keep=0.5,
    eval_size=6,
    learning_rate=1e-4,
    critic_lr=1e-3,
    num_iterations=2,
    eval_every=2,
    save_every=2,
)

# Each of these commands reads only some settings. If the command line has a setting that the
# command does not read, the command prints a line with the name of this setting.
READERS = (
    "eval.py",
    "tools.api_models",
    "tools.check_env",
    "tools.crowd",
    "tools.play",
    "tools.replay",
    "tools.sft",
    "studies.base_model.corpus",
    "studies.base_model.pretrain",
    "studies.credit.regret",
)

ROOT = pathlib.Path(__file__).resolve().parents[2]


def settings_read(command: str) -> str:
    """Return the blank-separated names of the settings that `command` from READERS reads."""
    return importlib.import_module(command.removesuffix(".py")).SETTINGS_READ


def unread_line(command: str, config: Config, sources: dict[str, str]) -> str:
    """Return the line that `command` from READERS prints about settings without effect.

    If all settings on the command line have an effect, return ''."""
    reasons = ()
    if command == "tools.sft":
        from tools.sft import without_effect

        reasons = without_effect(config)
    return warn_unread(command, settings_read(command), sources, reasons)


def config_file(name: str) -> str:
    """Return the path of config file `name`: config/methods/gspo.py for 'gspo'."""
    (path,) = ROOT.glob(f"config/**/{name}.py")
    return str(path)


def small_config(**changes) -> Config:
    return Config(**(SMALL_RUN | changes))


def small_sft_config(**changes) -> SftConfig:
    return SftConfig(**(SMALL_RUN | changes))


# ---------- folders


@pytest.fixture(scope="session", autouse=True)
def folder_of_session():
    with isolation.own_folder():
        yield


@pytest.fixture(autouse=True)
def folder_of_test():
    with isolation.own_folder():
        yield


# ---------- models


def small_model():
    """Return a model like the one in base/, but with 2 layers of width 64 and random weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    import model  # noqa: F401  (this import registers the attention implementation "layout")

    config = Qwen2Config.from_pretrained(
        BASE,
        num_hidden_layers=2,
        layer_types=["full_attention"] * 2,
        hidden_size=64,
        intermediate_size=192,
        num_attention_heads=2,
        attn_implementation="layout",
    )
    torch.manual_seed(0)
    built = Qwen2ForCausalLM(config)
    with torch.no_grad():  # scales the head, which is also the embedding, to keep the logits small
        built.lm_head.weight.mul_(0.02 / config.initializer_range)
    return built


@pytest.fixture(scope="session")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(BASE)


@pytest.fixture(scope="session")
def chat(tokenizer):
    from dialogue import Chat

    return Chat(tokenizer)


@pytest.fixture
def random_model():
    """A small model with weights so large that logits depend visibly on all earlier tokens."""
    built = small_model()
    with torch.no_grad():
        for name, weight in built.named_parameters():
            if weight.ndim == 2:
                weight.mul_(0.16 / weight.std())
            elif "norm" not in name:
                weight.normal_(std=0.2)  # the biases of q, k and v start at 0
    return built


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory, tokenizer):
    """A folder with a small model after 30 steps of SFT. About half of the model's replies are well
    formed, so scores vary."""
    if "NANORAGEN_TEST_START" in os.environ:  # test_parallel.py sets this variable for torchrun
        return pathlib.Path(os.environ["NANORAGEN_TEST_START"])
    import model
    from dialogue import Chat
    from tools import demonstrations, sft

    built = small_model()
    config = small_sft_config(
        sft_lr=2e-2,
        sft_muon_lr=0.02,
        sft_batch_size=8,
        sft_actions=2,
        sft_steps=30,
        weight_decay=0.0,
    )
    chat = Chat(tokenizer)
    demos = [demonstrations.demonstration(config, chat, i) for i in range(128)]

    def packs_of(step):
        return [[demos[(8 * step + i) % 128] for i in range(8)]]

    sft.imitate(model.Policy(built), packs_of, config)
    folder = tmp_path_factory.mktemp("small_start")
    built.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def trained_model(trained_folder):
    import model

    return model.load_model(str(trained_folder))[0]


@pytest.fixture
def one_rank():
    import parallel

    parallel.init_distributed(small_config())
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def two_runs(trained_folder, tmp_path_factory):
    """A folder with two runs. The same policy is in a/policy/ and in b/best/."""
    from support.run_folder import save_config

    folder = tmp_path_factory.mktemp("two_runs")
    for name, kind in (("a", "policy"), ("b", "best")):
        save_config(small_config(eval_size=3), {}, folder / name)
        (folder / name / kind).symlink_to(trained_folder, target_is_directory=True)
    return folder


@pytest.fixture(scope="module")
def browser():
    from tools.viewer.photograph import open_browser

    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        try:
            opened = open_browser(started)
        except UserError as error:
            pytest.skip(str(error))
        yield opened
        opened.close()
