"""Tests that commands other than train.py name the given settings that they do not use.

Run with:  python -m pytest -q tests/test_unread.py
"""

from configurator import FIELD_TYPES, Config, SftConfig, UserError, load_config

import pytest

from studies.imitation import comparison
from support.unread import READ_BY, warn_unread
from tools import check_env, crowd, play

LAKE = ["config/frozenlake_grpo.py", "config/models/tiny.py"]
NO_EFFECT = "these settings have no effect: "


SUPERVISED = ("tools.sft", "studies.base_model.corpus", "studies.base_model.pretrain")


def warning(command, *arguments):
    kind = SftConfig if command in SUPERVISED else Config
    config, _, sources = load_config([*LAKE, *arguments], kind=kind)
    return warn_unread(command, config, sources)


def test_every_name_is_a_setting():
    for command, names in READ_BY.items():
        assert set(names.split()) <= set(FIELD_TYPES), command


@pytest.mark.parametrize("command", READ_BY)
def test_files_of_experiments_name_nothing(command):
    assert warning(command) == ""


@pytest.mark.parametrize(
    "command, given, line",
    [
        ("eval.py", "--temperature=0.1 --seed=1", "seed, temperature: eval.py does not use them"),
        ("eval.py", "--eval_temperature=0.1 --max_turns=3", ""),
        ("tools.replay", "--model=tiny", "model: tools.replay does not use it"),
        ("tools.api_models", "--lora_rank=4", "lora_rank: tools.api_models does not use it"),
        ("tools.sft", "--lora_rank=4 --weight_decay=0.5 --dtype=bfloat16 --seed=1", ""),
        ("tools.sft", "--kl_coef=0.1 --compile=True", "compile, kl_coef: tools.sft does not use"),
        ("tools.sft", "--sft_clean=0.5", "sft_clean: sft_noise is 0"),
        ("tools.sft", "--sft_noise=0.5 --sft_clean=0.5", ""),
        ("tools.sft", "--sft_planners=0.5", "sft_planners: sft_player is shortest"),
        ("tools.sft", "--sft_player=crowd --sft_planners=0.5", ""),
        ("tools.sft", "--sft_lost=False", "sft_lost: sft_file is empty"),
        ("tools.sft", "--sft_file=a --sft_player=planner", "sft_player: sft_file holds the demon"),
        ("tools.sft", "--sft_file=a --sft_lost=False", ""),
        ("tools.sft", "--lora_rank=4 --sft_lr=1.0", "sft_lr: with LoRA all trained weights are"),
        ("studies.base_model.corpus", "--sft_planners=0.0 --env=bandit", "env: studies.base_model"),
        ("studies.base_model.pretrain", "--model=2x64 --sft_lr=1.0 --lora_rank=4", "lora_rank: "),
    ],
)
def test_what_a_command_does_not_use_is_named(command, given, line):
    found = warning(command, *given.split())
    assert found.startswith(NO_EFFECT + line) if line else found == ""


@pytest.mark.parametrize(
    "main, arguments, name",
    [
        (play.main, ["frozenlake", "--random", "--learning_rate=1.0"], "tools.play"),
        (crowd.main, [*LAKE, "--eval_size=1", "--learning_rate=1.0"], "tools.crowd"),
        (check_env.main, ["bandit", "--learning_rate=1.0"], "tools.check_env"),
    ],
)
def test_the_line_is_printed_first(main, arguments, name, capsys):
    main(arguments)
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"{NO_EFFECT}learning_rate: {name} does not use it"


def test_the_settings_of_a_comparison_are_fixed():
    with pytest.raises(UserError, match="the settings of the runs are fixed here; the options are"):
        comparison.main(["frozenlake", "--learning_rate=1.0"])
