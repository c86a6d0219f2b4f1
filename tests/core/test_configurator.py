"""Tests of settings from config files and the command line."""

import configurator
from configurator import (
    Config,
    UserError,
    check_type,
    load_config,
    parse_text,
)

import json
import math
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import get_args

import pytest
from shared_fixtures import config_file as shipped

from support.run import describe
from support.terminal import help_text, setting_help
from tools.sft_config import SftConfig

ROOT = Path(configurator.__file__).resolve().parent
WORLDS = ("bandit", "frozenlake", "sokoban")
EXPERIMENTS = [f"{env}_{estimator}" for env in WORLDS for estimator in ("grpo", "ppo")]
EXPERIMENTS += ["countdown_ppo", "guess_grpo", "household_ppo", "quest_ppo", "repair_grpo"]
EXPERIMENTS += ["rubik_ppo", "sudoku_ppo", "tools_ppo", "tools_fetch_grpo"]
EXPERIMENTS += ["guess_number_grpo", "spell_grpo", "cliff_walking_grpo"]
ENVS = {  # maps the start of a config file's name to the file's environment, if they differ
    "guess": "worlds/guess.py",
    "tools_fetch": "tools",
    "guess_number": "gem",
    "spell": "rg",
    "cliff_walking": "gymnasium",
}
OVERLAYS = """
    bandit_jobs bandit_transfer bi_level curriculum dppo_tv dr_grpo dynamic_sampling echo
    frozenlake_det frozenlake_v1 gigpo gspo hubs icepop lora mixture online_5 quest_transfer qwen3
    reinforce_plus_plus rloo sampo sequence_mask single_turn smollm2 smollm2_bandit
    smollm2_gpu sokoban_large sokoban_to_large sokoban_transfer starpo_vanilla think_reward tiny
    tiny_best tiny_collapse tiny_new_game tiny_text top_p turn_ppo
""".split()
ALGORITHMS = {"bi_level", "dr_grpo", "gigpo", "reinforce_plus_plus", "rloo", "sampo", "turn_ppo"}


def load(*argv):
    return load_config(list(argv))[0]


def config_file(folder, text, name="mine.py"):
    (folder / name).write_text(text)
    return str(folder / name)


# ---------- what is accepted


def test_defaults():
    config, extras, sources = load_config([])
    assert replace(config, out_dir="") == Config()
    assert extras == {}
    assert set(sources.values()) == {"default"} and set(sources) == set(asdict(config))


def test_file_then_command_line_last_wins(tmp_path):
    path = config_file(tmp_path, "seed = 1\nlearning_rate = 2e-6\n")
    config, _, sources = load_config(["--seed=7", "--gamma=0.5", path, "--learning_rate=3e-6"])
    assert (config.seed, config.gamma, config.learning_rate) == (1, 0.5, 3e-6)
    assert sources["seed"] == path
    assert sources["gamma"] == sources["learning_rate"] == "command line"
    assert sources["lam"] == "default"


def test_later_file_wins(tmp_path):
    first = config_file(tmp_path, "seed = 1", "a.py")
    second = config_file(tmp_path, "seed = 2", "b.py")
    assert load(first, second).seed == 2
    assert load(second, first).seed == 1


def test_int_is_fine_for_float(tmp_path):
    for config in (load("--learning_rate=1"), load(config_file(tmp_path, "learning_rate = 1"))):
        assert config.learning_rate == 1.0 and type(config.learning_rate) is float


def test_text_stays_text_on_the_command_line():
    assert load("--model=123").model == "123"
    assert load("--model=None").model == "None"
    assert load("--model=").model == ""


def test_split_at_the_first_equals_sign():
    assert load("--env=bandit:pair=phoenix,x=1").env == "bandit:pair=phoenix,x=1"


def test_bool_from_the_command_line():
    assert load("--think=False").think is False and load("--think=True").think is True


def test_negative_and_exponent_numbers():
    assert load("--format_penalty=-0.2").format_penalty == -0.2
    assert load("--learning_rate=1e-6").learning_rate == 1e-6


def test_file_helpers_are_ignored(tmp_path):
    lines = [
        "import math, time",
        "from pathlib import Path",
        "_base = 4",
        "def twice(x):",
        "    return 2 * x",
        "class Helper:",
        "    pass",
        "num_groups = twice(_base)",
        "seed = math.floor(3.7)",
    ]
    config = load(config_file(tmp_path, "\n".join(lines)))
    assert (config.num_groups, config.seed) == (8, 3)


def test_extra_options_are_returned_apart():
    argv = ["--player=oracle", "--episodes=3", "--plain=True", "--seed=1"]
    extra = {"player": "", "json": "", "episodes": 1, "plain": False}
    config, extras, sources = load_config(argv, extra=extra)
    assert extras == {"player": "oracle", "json": "", "episodes": 3, "plain": True}
    assert config.seed == 1 and "player" not in sources
    assert extra["player"] == ""


# ---------- what is refused, and with which message


def test_unknown_key_on_the_command_line_names_the_nearest():
    message = "unknown key 'learing_rate' from command line: did you mean learning_rate"
    with pytest.raises(ValueError, match=message):
        load("--learing_rate=1e-6")


@pytest.mark.parametrize("key", ["top_p", "top_k"])
def test_a_cut_distribution_is_refused_with_the_reason(key, tmp_path):
    path = config_file(tmp_path, f"{key} = 0.9")
    for source, argument in (("command line", f"--{key}=0.9"), (path, path)):
        with pytest.raises(ValueError) as error:
            load(argument)
        assert str(error.value) == (
            f"{key} from {source} is refused: samples would come from a cut distribution, but the "
            "loss takes log-probs of the full distribution; use temperature"
        )


def test_unknown_key_in_a_file_names_the_file(tmp_path):
    path = config_file(tmp_path, "learing_rate = 1e-3")
    with pytest.raises(ValueError) as error:
        load(path)
    assert f"unknown key 'learing_rate' from {path}: did you mean learning_rate" in str(error.value)


def test_a_misspelt_file_has_a_suggestion():
    def sentence(path):
        with pytest.raises(UserError) as error:
            load(path)
        return str(error.value)

    start = "config file config/frozenlake_grop.py does not exist: did you mean "
    assert sentence("config/frozenlake_grop.py").startswith(f"{start}config/frozenlake_grpo.py or")
    moved = "config file config/tiny.py does not exist: did you mean config/models/tiny.py?"
    assert sentence("config/tiny.py") == moved
    assert sentence("zzz.py") == "config file zzz.py does not exist: no file in config/ is similar"


def test_a_blank_in_place_of_the_equals_sign():
    with pytest.raises(UserError, match="with an equals sign: --learning_rate=1e-4$"):
        load("--learning_rate", "1e-4")
    with pytest.raises(UserError, match="such as --think=True$"):
        load("--think", "--seed=1")


def test_up_to_three_near_names():
    with pytest.raises(ValueError) as error:
        load("--max_turn=1")
    hint = str(error.value).split("did you mean ")[1]
    assert "max_turns" in hint and hint.count(" or ") <= 2


def test_a_key_that_is_near_nothing():
    with pytest.raises(ValueError) as error:
        load("--zzz=1")
    sentence = "unknown key 'zzz' from command line: no key is similar; see --help"
    assert str(error.value) == sentence


def test_an_abbreviation_of_the_field_names_the_setting():
    with pytest.raises(ValueError, match="unknown key 'lr' .*: did you mean learning_rate"):
        load("--lr=1e-6")
    with pytest.raises(ValueError, match="unknown key 'sequence' .*: did you mean segment"):
        load("--sequence=turn")


def test_near_names_include_extra_options():
    message = "unknown key 'playr' from command line: did you mean player"
    with pytest.raises(ValueError, match=message):
        load_config(["--playr=oracle"], extra={"player": ""})


def test_extra_options_are_for_the_command_line_only(tmp_path):
    path = config_file(tmp_path, "player = 'oracle'")
    with pytest.raises(ValueError, match="unknown key 'player' from .*mine.py"):
        load_config([path], extra={"player": ""})
    message = r"episodes must be int, got 'many' \(str\) from command line"
    with pytest.raises(UserError, match=message):
        load_config(["--episodes=many"], extra={"episodes": 1})


def test_the_parsers_own_variables_are_no_keys():
    for key in ("key", "arg", "values", "__name__", ""):
        with pytest.raises(ValueError, match=f"unknown key '{key}' from command line"):
            load(f"--{key}=abc")


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--batch_size=16.0", "batch_size must be int, got 16.0 (float) from command line"),
        ("--batch_size=True", "batch_size must be int, got True (bool) from command line"),
        ("--batch_size=", "batch_size must be int, got '' (str) from command line"),
        ("--batch_size=None", "batch_size must be int, got None (NoneType) from command line"),
        ("--think=1", "think must be bool (True or False), got 1 (int) from command line"),
        ("--think=true", "think must be bool (True or False), got 'true' (str) from command line"),
        ("--learning_rate=abc", "learning_rate must be float, got 'abc' (str) from command line"),
        ("--learning_rate=True", "learning_rate must be float, got True (bool) from command line"),
        ("--seed=1=2", "seed must be int, got '1=2' (str) from command line"),
    ],
)
def test_wrong_type_on_the_command_line(argument, message):
    with pytest.raises(UserError) as error:
        load(argument)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "line, message",
    [
        ("batch_size = '32'", "batch_size must be int, got '32' (str) from "),
        ("batch_size = True", "batch_size must be int, got True (bool) from "),
        ("model = 123", "model must be str, got 123 (int) from "),
        ("model = None", "model must be str, got None (NoneType) from "),
        ("learning_rate = float", "learning_rate must be float, got <class 'float'> (type) from "),
    ],
)
def test_wrong_type_in_a_file(tmp_path, line, message):
    path = config_file(tmp_path, line)
    with pytest.raises(UserError) as error:
        load(path)
    assert str(error.value) == message + path


@pytest.mark.parametrize(
    "argument", ["--seed", "seed=1", "-seed=1", "seed", "--verbose", "config/tiny", ""]
)
def test_argument_of_no_known_form(argument):
    with pytest.raises(ValueError) as error:
        load(argument)
    assert str(error.value).startswith(
        f"argument {argument!r} is neither a config/name.py file nor --key=value"
    )
    assert "--seed=1" in str(error.value)


def test_missing_file():
    with pytest.raises(ValueError, match="config file config/no_such.py does not exist"):
        load("config/no_such.py")


@pytest.mark.parametrize(
    "text, cause, words",
    [
        ("seed = 1 / 0", ZeroDivisionError, "ZeroDivisionError: division by zero"),
        ("seed = (", SyntaxError, "SyntaxError: '(' was never closed"),
        ("seed = sead", NameError, "NameError: name 'sead' is not defined"),
    ],
)
def test_failing_file_is_named_and_its_error_chained(tmp_path, text, cause, words):
    path = config_file(tmp_path, text)
    with pytest.raises(ValueError) as error:
        load(path)
    assert f"config file {path} fails with {words}" in str(error.value)
    assert isinstance(error.value.__cause__, cause)


# ---------- ranges


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--group_size=0", "group_size must be 1 or more, got 0"),
        ("--actions_per_turn=0", "actions_per_turn must be 1 or more, got 0"),
        ("--seed=-1", "seed must be 0 or more, got -1"),
        ("--temperature=0", "temperature must be at least 0.01, got 0.0"),
        ("--eval_temperature=-0.1", "eval_temperature must be 0, or at least 0.01, got -0.1"),
        ("--filter_keep=0", "filter_keep must be more than 0, got 0.0"),
        (
            "--filter_keep=1.5",
            "filter_keep must be at most 1 with filter_strategy=fraction, got 1.5",
        ),
        ("--dual_clip=1", "dual_clip must be 0, or more than 1, got 1.0"),
        ("--turn_gamma=1.1", "turn_gamma must be between 0 and 1, got 1.1"),
        (
            "--filter_strategy=top_k",
            "filter_strategy must be one of fraction, count, top_p, top_p_softmax, min_p, "
            "got 'top_k'",
        ),
        ("--format_penalty=0.1", "format_penalty must be between -1000000 and 0, got 0.1"),
        ("--gamma=1.1", "gamma must be between 0 and 1, got 1.1"),
        ("--adam_beta2=1", "adam_beta2 must be at least 0 and less than 1, got 1.0"),
        ("--eval_size=257", "eval_size must be between 1 and 256, got 257"),
        ("--learning_rate=1e999", "learning_rate must be 0 or more, got inf"),
        (
            "--estimator=ppo",
            f"estimator must be one of {', '.join(get_args(configurator.Estimator))}, got 'ppo'",
        ),
        ("--observation=image", "observation must be one of grid, coord, relations, got 'image'"),
        ("--device=tpu", "device must be one of auto, cpu, cuda, got 'tpu'"),
        ("--dtype=half", "dtype must be one of auto, float32, bfloat16, float16, got 'half'"),
    ],
)
def test_range(argument, message):
    with pytest.raises(ValueError) as error:
        load(argument)
    assert str(error.value) == message


def test_ranges_hold_for_files_and_for_direct_use(tmp_path):
    with pytest.raises(ValueError, match="group_size must be 1 or more, got 0"):
        load(config_file(tmp_path, "group_size = 0"))
    with pytest.raises(ValueError, match="group_size must be 1 or more, got 0"):
        Config(group_size=0)
    with pytest.raises(ValueError, match="learning_rate must be 0 or more, got nan"):
        Config(learning_rate=math.nan)


def test_every_number_has_one_range():
    kinds = configurator.types_of(SftConfig).items()
    numbers = {key for key, kind in kinds if kind in (int, float)}
    assert set(configurator.ranges_of(SftConfig)) == numbers


def test_batch_is_no_more_than_the_filter_keeps():
    # by default the filter keeps 0.25 * 8 = 2 groups, which have 2 * 16 = 32 trajectories
    with pytest.raises(ValueError) as error:
        load("--batch_size=64")
    assert "batch_size (64) is more than the 32 trajectories kept" in str(error.value)
    assert "filter_keep 0.25 of num_groups 8, group_size 16" in str(error.value)
    assert load("--batch_size=64", "--filter_keep=0.5").batch_size == 64
    # 0.25 of 2 groups is 0.5 groups, but the filter keeps at least one group
    assert load("--num_groups=2", "--batch_size=16").num_groups == 2


def test_batch_is_no_more_than_other_filters_may_keep():
    count = ["--filter_strategy=count", "--filter_keep=3"]
    assert load(*count, "--batch_size=48").filter_keep == 3.0
    message = r"batch_size \(49\) is more than the 48 trajectories kept \(filter_keep 3.0"
    with pytest.raises(ValueError, match=message):
        load(*count, "--batch_size=49")
    for keep in (0.5, 9.0):
        message = f"filter_keep must be 1 to 8 with filter_strategy=count, got {keep}"
        with pytest.raises(ValueError, match=message):
            load("--filter_strategy=count", f"--filter_keep={keep}")


@pytest.mark.parametrize("strategy", ["top_p", "top_p_softmax", "min_p"])
def test_filters_by_share_keep_any_number_of_groups(strategy):
    filter_strategy = f"--filter_strategy={strategy}"
    assert load(filter_strategy, "--batch_size=128").filter_keep == 0.25
    message = r"batch_size \(129\) is more than the 128 trajectories kept"
    with pytest.raises(ValueError, match=message):
        load(filter_strategy, "--batch_size=129")
    message = rf"filter_keep must be at most 1 with filter_strategy={strategy}, got 3\.0"
    with pytest.raises(ValueError, match=message):
        load(filter_strategy, "--filter_keep=3")
    for option in ("--filter_smallest=True", "--filter_by=reward_mean"):
        message = f"'{strategy}' ranks values >= 0"
        with pytest.raises(ValueError, match=message):
            load(filter_strategy, option)


def test_the_entropy_filter_needs_log_probs_of_the_engine():
    options = ("--filter_by=entropy", "--recompute_old_logprobs=True")
    with pytest.raises(ValueError) as error:
        load(*options)
    assert str(error.value) == (
        "filter_by='entropy' needs the log-probs of the engine, and with "
        "recompute_old_logprobs=True vLLM is not asked for them; choose another filter_by, "
        "recompute_old_logprobs=False, or engine=torch"
    )
    assert load(*options, "--engine=torch").engine_gives_logprobs()
    assert load("--filter_by=entropy").engine_gives_logprobs()


def test_k1_is_refused_in_the_loss_with_the_reason():
    with pytest.raises(ValueError) as error:
        load("--kl_coef=0.01", "--kl_estimator=k1")
    message = (
        "kl_estimator='k1' has an expected gradient of 0 in the loss; use k2, k3, or kl_in='reward'"
    )
    assert str(error.value) == message
    assert load("--kl_coef=0.01", "--kl_estimator=k1", "--kl_in=reward").kl_estimator == "k1"
    # allowed, because kl_coef=0 switches the KL off
    assert load("--kl_estimator=k1").kl_coef == 0.0


SINGLES = ["--group_size=1", "--batch_size=1", "--filter_keep=1.0"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["--collapse_every=5", "--think=False"],
            "collapse metrics compare thoughts, but think is False",
        ),
        (["--turn_level=True"], "turn_level is for estimators grpo, dr_grpo, rloo, .*; got 'gae'"),
        ([*SINGLES, "--estimator=rloo"], "group_size=1 leaves"),
        ([*SINGLES, "--reward_norm=mean"], "group_size=1 leaves"),
    ],
)
def test_what_would_teach_nothing_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        load(*arguments)


def test_a_group_of_one_is_never_kept():
    message = "groups without variance, and the filter drops them all; use --group_size=2 or more"
    with pytest.raises(ValueError, match=message):
        load("--group_size=1", "--batch_size=1")
    assert load("--group_size=1", "--batch_size=1", "--filter_keep=1.0").group_size == 1
    assert load("--group_size=1", "--batch_size=1", "--filter_zero_std=True").group_size == 1
    # The filter keeps 29 of 100 groups, although 100 * 0.29 is 28.99.. in floating point. 29 groups
    # of 16 are 464 trajectories.
    assert load("--num_groups=100", "--filter_keep=0.29", "--batch_size=464").batch_size == 464


@pytest.mark.parametrize(
    "argument, message",
    [
        (
            "--actions_per_turn=11",
            r"actions_per_turn \(11\) must not exceed actions_per_traj \(10\)",
        ),
        (
            "--max_response_tokens=4000",
            r"max_response_tokens \(4000\) must not exceed max_context_tokens \(3600\)",
        ),
        (
            "--micro_batch_tokens=3599",
            r"max_context_tokens \(3600\) must not exceed micro_batch_tokens \(3599\)",
        ),
    ],
)
def test_pairs_that_contradict(argument, message):
    with pytest.raises(ValueError, match=message):
        load(argument)


# ---------- out_dir


def test_out_dir(tmp_path):
    assert load().out_dir == "out/default"
    assert load("--seed=2").out_dir == "out/default_s2"
    first = config_file(tmp_path, "", "first.py")
    second = config_file(tmp_path, "", "second.py")
    assert load(first, second).out_dir == "out/first"
    assert load(first, "--seed=1").out_dir == "out/first_s1"
    assert load(first, "--seed=1", "--out_dir=out/mine").out_dir == "out/mine"
    assert load(config_file(tmp_path, "out_dir = 'out/file'"), "--seed=1").out_dir == "out/file_s1"


# ---------- shipped configs


def test_every_shipped_config_is_known():
    found = sorted(path.stem for path in (ROOT / "config").glob("**/*.py"))
    assert found == sorted(EXPERIMENTS + OVERLAYS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_loads_alone_and_tiny(name):
    world, algorithm = name.rsplit("_", 1)
    config = load(shipped(name))
    small = load(shipped(name), shipped("tiny"))
    assert config.env.split(":")[0] == small.env.split(":")[0] == ENVS.get(world, world)
    assert config.estimator == small.estimator == {"ppo": "gae", "grpo": "grpo"}[algorithm]
    assert config.out_dir == f"out/{name}" and small.model == "tiny" and small.device == "cpu"
    # The filter keeps 32 of 128 trajectories. They are one batch, so an iteration has one optimizer
    # step. In guess_grpo the filter keeps 128 of 256 trajectories, so an iteration has four steps.
    num_trajectories = {"guess_grpo": 256}.get(name, 128)
    assert (config.num_groups * config.group_size, config.batch_size) == (num_trajectories, 32)


def test_the_main_experiment_writes_defaults_out():
    config = load(shipped("frozenlake_ppo"))
    default = Config()
    changed = {key for key, value in asdict(config).items() if value != getattr(default, key)}
    assert changed == {"out_dir", "env"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_overlay_loads_on_an_experiment(name):
    base = load(shipped("frozenlake_ppo"))
    config = load(shipped("frozenlake_ppo"), shipped(name))
    changed = {key for key, value in asdict(config).items() if value != getattr(base, key)}
    is_named = shipped(name).split("/")[-2] in ("methods", "envs")
    assert ("out_dir" in changed) == is_named and changed - {"out_dir"}
    assert config.out_dir == (f"out/frozenlake_ppo-{name}" if is_named else "out/frozenlake_ppo")
    assert ("estimator" in changed) == (name in ALGORITHMS)


def test_ppo_and_grpo_differ_in_the_estimator_only():
    for env in WORLDS:
        ppo = load(shipped(f"{env}_ppo"))
        grpo = load(shipped(f"{env}_grpo"))
        assert replace(ppo, estimator="grpo", out_dir=grpo.out_dir) == grpo


# ---------- printing


def test_describe_shows_what_was_given():
    path = shipped("frozenlake_grpo")
    config, _, sources = load_config([path, "--seed=1"])
    assert describe(config, sources).splitlines() == [
        "out_dir = 'out/frozenlake_grpo_s1' (default)",
        "seed = 1 (command line)",
        f"env = 'frozenlake:size=4,frozen_prob=0.8,success_rate=0.8' ({path})",
        f"estimator = 'grpo' ({path})",
    ]


def test_every_field_has_a_comment_and_is_in_the_help():
    text = help_text("What the script does.")
    assert text.startswith("What the script does.")
    for field in fields(Config):
        lines = [line for line in text.splitlines() if line.startswith(f"  --{field.name}=")]
        assert len(lines) == 1, field.name
        shown, comment = lines[0].split("  # ", 1)
        assert shown.strip() != "" and len(comment) > 10, field.name
        default = shown.split("=", 1)[1].strip('"')
        wanted = configurator.types_of(Config)[field.name]
        assert check_type(field.name, parse_text(default, wanted), wanted, "help") == field.default
    assert "  --seed=0  # 0 or more; every random stream" in text
    assert '  --device="auto"  # auto | cpu | cuda; auto: cuda' in text
    for group in ("run", "environment", "model", "rollout", "StarPO", "update", "evaluation"):
        assert f"\n{group}:\n" in text


def test_the_help_of_one_setting():
    line = "--lam=1.0  # between 0 and 1; lambda of GAE inside a turn"
    assert setting_help("lam") == line
    assert setting_help("max_error_frac").endswith(
        "at least one error in an evaluation. The run also stops if every group has an error"
    )
    with pytest.raises(UserError, match="unknown key 'lamb' from --help: did you mean lam?"):
        setting_help("lamb")
    with pytest.raises(UserError, match="sft_lr from --help: names that begin with sft_"):
        setting_help("sft_lr")
    assert setting_help("sft_lr", SftConfig).startswith("--sft_lr=1e-5  # 0 or more")


def test_a_script_prints_the_help_of_one_setting(tmp_path):
    done = run_script(tmp_path, "--help=lam")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "--lam=1.0  # between 0 and 1; lambda of GAE inside a turn\n"
    done = run_script(tmp_path, "--help=sead")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown key 'sead' from --help: did you mean seed?\n"


def test_a_python_without_the_packages_says_how_to_activate_the_environment(tmp_path):
    """Python's options -S and -I hide the installed packages."""
    run = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import configurator"
    command = [sys.executable, "-I", "-S", "-c", run]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "have numpy, torch, transformers, safetensors; run `source .venv/bin/act" in done.stderr


def test_settings_of_tools_sft_are_not_those_of_train(tmp_path):
    path = config_file(tmp_path, "seed = 3\nsft_lr = 0.5\n")
    config, _, sources = load_config([path])
    assert (type(config), config.seed) == (Config, 3)
    assert not hasattr(config, "sft_lr") and "sft_lr" not in sources
    config, _, sources = load_config([path, "--sft_steps=2"], kind=SftConfig)
    assert (config.seed, config.sft_lr, config.sft_steps) == (3, 0.5, 2)
    assert (sources["sft_lr"], sources["sft_steps"]) == (path, "command line")
    again, _, _ = load_config(["--seed=4"], base=config)
    assert again == replace(config, seed=4)
    with pytest.raises(ValueError, match="sft_lr from command line: names that begin with sft_"):
        load_config(["--sft_lr=1.0"])
    with pytest.raises(ValueError, match="sft_lr must be float, got 'x'"):
        load_config([config_file(tmp_path, "sft_lr = 'x'")], kind=SftConfig)
    wrong = config_file(tmp_path, "sft_lrr = 'x'")
    assert replace(load(wrong), out_dir="") == Config()
    with pytest.raises(ValueError, match="unknown key 'sft_lrr' from .*: did you mean sft_lr"):
        load_config([wrong], kind=SftConfig)
    with pytest.raises(ValueError, match="sft_noise must be between 0 and 1, got 2.0"):
        load_config(["--sft_noise=2.0"], kind=SftConfig)


def test_the_help_of_tools_sft_shows_its_settings():
    text = help_text("What the script does.", SftConfig)
    for field in fields(SftConfig):
        assert text.count(f"  --{field.name}=") == 1
    assert "Settings and their defaults:\n\nsupervised learning:\n" in text
    assert "sft_" not in help_text("What the script does.")


# ---------- scripts

SCRIPT = '''"""What this script is for."""
from configurator import UserError, load_config
from support.terminal import run_main

def main(argv):
    config, _, _ = load_config(argv)
    if config.seed == 9:
        open("/no/such/file")
    if config.seed == 8:
        raise UserError("first line\\nsecond line")
    if config.seed == 7:
        raise ValueError("a bug")
    print("seed", config.seed)

if __name__ == "__main__":
    run_main(main)
'''


def run_script(folder, *argv, **env):
    (folder / "script.py").write_text(SCRIPT)
    env = {"PYTHONPATH": str(ROOT), **env}
    command = [sys.executable, "script.py", *argv]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def test_script_runs(tmp_path):
    done = run_script(tmp_path, "--seed=4")
    assert (done.returncode, done.stdout, done.stderr) == (0, "seed 4\n", "")


def test_torchrun_gets_the_sentence(tmp_path):
    run_script(tmp_path, "--seed=8", TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"))
    record = json.loads((tmp_path / "error.json").read_text())
    assert record["message"] == "error: first line second line" and record["timestamp"] > 1.7e9


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--sead=1", "error: unknown key 'sead' from command line: did you mean seed?\n"),
        ("--seed=x", "error: seed must be int, got 'x' (str) from command line\n"),
        ("--seed=8", "error: first line second line\n"),
    ],
)
def test_script_fails_in_one_line(tmp_path, argument, message):
    done = run_script(tmp_path, argument)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


@pytest.mark.parametrize(
    "argument, last",
    [
        ("--seed=9", "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'"),
        ("--seed=7", "ValueError: a bug"),
    ],
)
def test_a_bug_shows_its_traceback(tmp_path, argument, last):
    done = run_script(tmp_path, argument)
    assert done.returncode == 1 and done.stderr.startswith("Traceback")
    assert done.stderr.rstrip().endswith(last)


def test_script_shows_the_traceback_on_request(tmp_path):
    done = run_script(tmp_path, "--sead=1", NANORAGEN_TRACEBACK="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "UserError: unknown key 'sead'" in done.stderr


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_script_help(tmp_path, flag):
    done = run_script(tmp_path, "--nonsense", flag)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("What this script is for.")
    assert all(f"--{field.name}=" in done.stdout for field in fields(Config))


FORK = """
import argparse
import envs

parser = argparse.ArgumentParser(description="A program of a fork.")
parser.add_argument("--boards", help="number of boards")
parser.parse_args()
"""


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_a_program_that_imports_envs_keeps_its_own_help(tmp_path, flag):
    (tmp_path / "fork.py").write_text(FORK)
    command = [sys.executable, "fork.py", flag]
    env = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: fork.py") and "number of boards" in done.stdout
