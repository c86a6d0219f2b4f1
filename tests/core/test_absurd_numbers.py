"""Tests of config files that end the process, as sys.exit() does, and of extreme numbers in
settings, such as nan or inf."""

from configurator import (
    LARGEST_NUMBER,
    Config,
    UserError,
    load_config,
    ranges_of,
    read_config_file,
)

import sys

import pytest
from learners import make_learner
from shared_fixtures import SMALL_RUN

import train
from dialogue import Chat
from support.terminal import run_main
from tools.sft_config import SftConfig

RANGES = ranges_of(SftConfig)
NUMBERS = """
    0 -0.0 1 -1 0.5 5e-324 -5e-324 1e-300 1e-9 0.999999999999 1.0000001 256 257 1e6 1e9 1e12
    1e308 -1e308 2147483647 2147483648 4294967296 9223372036854775807 9223372036854775808
    1000000000000 1.7976931348623157e308 1e309 -1e309 nan inf
""".split()
NUMBERS += ["9" * 40, "-" + "9" * 40, "9" * 400, "-" + "9" * 400, "9" * 5000]
EXPRESSIONS = ["float('nan')", "float('inf')", "-float('inf')", "10**40", "10**400", "10**5000"]


@pytest.mark.parametrize("key", RANGES)
def test_a_number_is_legal_or_refused_in_words(key, tmp_path):
    arguments = [f"--{key}={number}" for number in NUMBERS]
    for i, expression in enumerate(EXPRESSIONS):
        path = tmp_path / f"{i}.py"
        path.write_text(f"{key} = {expression}")
        arguments.append(str(path))
    for argument in arguments:
        try:
            config, _, _ = load_config([argument], kind=SftConfig)
        except UserError as error:
            assert key in str(error) and "\n" not in str(error)
        else:
            assert abs(getattr(config, key)) <= RANGES[key].largest


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--clip_high=1e308"], "clip_high must be at most 1,000,000,000, got 1e+308"),
        (["--num_groups=1000000000000"], "num_groups must be at most 100,000, got 1000000000000"),
        (
            ["--num_groups=100000"],
            "num_groups (100000) * group_size (16) are 1,600,000 trajectories in an iteration; at "
            "most 100,000 fit into memory",
        ),
        (["--lora_rank=1025"], "lora_rank must be at most 1,024, got 1025"),
        (["--temperature=1e-300"], "temperature must be at least 0.01, got 1e-300"),
        (["--eval_temperature=1e-9"], "eval_temperature must be 0, or at least 0.01, got 1e-09"),
        (["--step_timeout_s=1e-9"], "step_timeout_s must be at least 0.001, got 1e-09"),
        ([f"--seed={10**400}"], "seed from command line is an integer of 1329 bits"),
        (
            [f"--learning_rate={10**400}"],
            "learning_rate from command line is an integer of 1329 bits",
        ),
    ],
)
def test_sentences(arguments, sentence):
    with pytest.raises(UserError) as error:
        load_config(arguments)
    assert str(error.value) == sentence


# These settings enter computations with float32 tensors, so their values must fit into float32.
SCALARS = """
    adam_beta1 adam_beta2 adam_eps clip_high clip_low critic_lr dual_clip entropy_coef
    format_penalty gamma grad_clip importance_cap kl_coef lam learning_rate temperature turn_gamma
    turn_lam value_clip value_coef weight_decay
""".split()


def extremes(key):
    legal = []
    for number in (*map(float, NUMBERS[:-5]), LARGEST_NUMBER):
        try:
            Config(**(SMALL_RUN | dict(num_groups=4) | {key: float(number)}))
        except UserError:
            continue
        legal.append(float(number))
    return min(legal), max(legal)


@pytest.mark.slow
@pytest.mark.parametrize("key", SCALARS)
def test_an_update_with_the_extremes_of_a_setting(key, trained_folder, one_rank):
    for value in extremes(key):
        changes = {"estimator": "gae", "kl_coef": 0.001, "dual_clip": 3.0, key: value}
        learner = make_learner(trained_folder, **changes)
        row, _ = train.iterate(learner, learner.engine, Chat(learner.tokenizer), [])
        assert row["step"] == 1


# ---------- user code that ends the process


@pytest.mark.parametrize(
    "code, words",
    [
        ("import sys\nsys.exit()", "SystemExit: "),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("quit()", "SystemExit: None"),
        ("raise GeneratorExit('x')", "GeneratorExit: x"),
        ("class Mine(BaseException): ...\nraise Mine('y')", "Mine: y"),
        ("def f(): f()\nf()", "RecursionError: "),
        ("seed = 'a\x00b'", "SyntaxError: "),
    ],
)
def test_a_config_file_that_ends_the_process_is_one_sentence(code, words, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(code)
    with pytest.raises(UserError) as error:
        read_config_file(str(path), {})
    assert str(error.value).startswith(f"config file {path} fails with {words}")


def test_ctrl_c_in_a_config_file_is_no_mistake(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        read_config_file(str(path), {})


@pytest.mark.parametrize(
    "code, expected", [(0, 2), (None, 2), (1, 1), (75, 75), ("words", "words")]
)
def test_an_exit_before_the_end_is_an_error(code, expected, capsys):
    def main(argv):
        sys.exit(code)

    with pytest.raises(SystemExit) as left:
        run_main(main)
    assert left.value.code == expected
    sentence = "error: some code called sys.exit() before the command was finished\n"
    assert capsys.readouterr().err == (sentence if expected == 2 else "")
