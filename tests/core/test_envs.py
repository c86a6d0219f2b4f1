"""Tests of envs.py and mixtures.py."""

from configurator import Config

import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest
from boards import (
    LAKE_V1,
    LAKE_V2,
    LARGER,
    SIMPLE,
    SMALL_COUNTDOWN,
    prompt_digest,
)

import envs
import mixtures
from envs import Env, Move, Step, make_env
from mixtures import env_specs, mixture_at
from rollout import make_episode
from worlds import countdown, planners

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("module", [envs, mixtures, planners, countdown])
def test_doctests(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


# ---------- the protocol


class Doors(Env):
    actions = ("left", "right")

    def _start(self, instance):
        pass

    def _move(self, index):
        return self.result

    def observe(self):
        return f"Door {self.num_actions}"


@pytest.mark.parametrize("result", [(0.5, True, True, False), Move(0.5, True, True, False)])
def test_a_move_may_be_a_plain_tuple(result):
    env = Doors(max_actions=3)
    env.result = result
    env.start(("doors",), [0])
    step = env.step(" LEFT ")
    assert step == Step("Door 1", 0.5, True, False, success=True, valid=True, effective=False)


def test_the_budget_truncates():
    env = Doors(max_actions=2)
    env.result = Move(0.0, terminated=False, success=False, effective=True)
    env.start(("doors",), [0])
    assert not env.step("left").truncated
    assert not env.step("door").valid and env.actions_left == 1
    assert env.step("right").truncated
    step = env.step("left")
    assert (step.valid, step.truncated, step.terminated) == (False, True, False)


# ---------- instances: the same in every process, disjoint splits, groups


@pytest.mark.slow
def test_same_seed_same_prompts_in_another_process():
    helpers = ROOT / "tests/helpers"
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(helpers)!r}]; import boards; "
    code += "print(boards.prompt_digest())"
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == prompt_digest(), done.stderr


def test_splits_are_disjoint():
    # At frozen_prob 0.9, draws often repeat a board: almost a quarter of the draws have no holes,
    # and only 240 boards without holes exist.
    env = make_env(LAKE_V2)
    sets = {}
    for split in ("eval", "heldout"):
        drawn = []
        for i in range(256):
            env.reset(i, split=split)
            drawn.append(env.instance)
        sets[split] = set(drawn)
        assert len(sets[split]) == 256
    assert not sets["eval"] & sets["heldout"]
    train = set()
    for seed in range(3000):
        env.reset([seed, 1])
        train.add(env.instance)
    assert not train & (sets["eval"] | sets["heldout"])
    assert len(train) > 1000


@pytest.mark.parametrize("spec", [SIMPLE, LARGER, LAKE_V1, SMALL_COUNTDOWN])
def test_reserved_sets_are_distinct(spec):
    reserved = envs.reserved_instances(spec)
    assert len(set(reserved["eval"])) == len(set(reserved["heldout"])) == 256
    assert not set(reserved["eval"]) & set(reserved["heldout"])


def test_group_shares_the_board_and_not_the_noise():
    env = make_env(LAKE_V1)
    outcomes = []
    for _ in range(2):
        firsts, ends = [], []
        for member in range(8):
            firsts.append(env.reset(21, member=member))
            moves = ("Left", "Right", "Down", "Up")
            ends.append(tuple(env.step(move).observation for move in moves))
        assert len(set(firsts)) == 1
        assert len(set(ends)) > 1
        outcomes.append(ends)
    assert outcomes[0] == outcomes[1]


def test_reset_errors():
    env = make_env("frozenlake")
    with pytest.raises(ValueError, match=r"split must be one of train, eval, heldout, got 'test'"):
        env.reset(0, split="test")
    message = r"an index of the eval split is one integer in \[0, 256\)"
    for index in (256, -1, [1, 2]):
        with pytest.raises(ValueError, match=message):
            env.reset(index, split="eval")


def test_too_few_instances_for_the_splits(monkeypatch):
    monkeypatch.setattr(envs, "MAX_DRAWS", 1000)
    message = "env='frozenlake:size=2,frozen_prob=1' has too few distinct instances"
    with pytest.raises(ValueError, match=message):  # only 4 * 3 choices of start and goal exist
        envs.reserved_instances("frozenlake:size=2,frozen_prob=1")


def test_training_leaves_out_what_any_environment_of_the_run_reserves():
    easy = "frozenlake:size=3,frozen_prob=0.9"
    hard = "frozenlake:size=3,frozen_prob=0.8"
    reserved = set()
    for instances in envs.reserved_instances(hard).values():
        reserved.update(instances)
    alone = [envs.draw_instance(easy, (0, i), "train") for i in range(300)]
    together = [envs.draw_instance(easy, (0, i), "train", (hard,)) for i in range(300)]
    assert len(reserved.intersection(alone)) > 10
    assert not reserved.intersection(together)
    same = sum(a == b for a, b in zip(alone, together, strict=True))
    assert same == sum(instance not in reserved for instance in alone)
    for text in (f"{easy} @5 > {hard}", f"{easy} + 2*{hard}"):
        assert make_episode(Config(env=text), easy).env.also_reserved == (easy, hard)
    assert make_episode(Config(env=easy, eval_env=hard)).env.also_reserved == (easy, hard)


# ---------- options


@pytest.mark.parametrize(
    "spec, words",
    [
        ("frozenlak", ["unknown environment 'frozenlak'", "did you mean frozenlake?"]),
        ("zzz", ["unknown environment 'zzz'", "bandit, frozenlake, sokoban"]),
        (
            "frozenlake:sucess_rate=1",
            [
                "unknown option 'sucess_rate'",
                "frozenlake has size, frozen_prob, success_rate; did you mean success_rate?",
            ],
        ),
        ("bandit:size=4", ["unknown option 'size'", "bandit has pair"]),
        ("sokoban:size=big", ["size must be int", "got 'big' (str)"]),
        ("sokoban:size=6.5", ["size must be int", "got 6.5 (float)"]),
        ("sokoban:size", ["size must be int", "got ''"]),
        ("frozenlake:success_rate=often", ["success_rate must be float", "got 'often'"]),
        (
            "frozenlake:success_rate=1.5",
            ["0 < success_rate <= 1", "got size=4, frozen_prob=0.8, success_rate=1.5"],
        ),
        ("frozenlake:success_rate=nan", ["success_rate must be float", "got 'nan'"]),
        ("frozenlake:size=10", ["frozenlake needs size", "got size=10"]),
        ("sokoban:size=4", ["sokoban needs size", "got size=4"]),
        ("sokoban:boxes=0", ["sokoban needs", "got size=6, boxes=0"]),
        ("sokoban:symbols=emoji", ["symbols must be one of default, newvocab", "got 'emoji'"]),
        ("bandit:pair=foo", ["pair must be one of phoenix", "got 'foo'"]),
    ],
)
def test_make_env_errors(spec, words):
    with pytest.raises((ValueError, TypeError)) as error:
        make_env(spec)
    for word in words:
        assert word in str(error.value)


def test_make_env_options():
    env = make_env("sokoban:size=8,boxes=2,search_depth=10", observation="coord", max_actions=7)
    assert (env.size, env.num_boxes, env.search_depth, env.max_actions) == (8, 2, 10, 7)
    assert env.observation_mode == "coord"
    message = "observation must be one of grid, coord, relations, got 'pixels'"
    with pytest.raises(ValueError, match=message):
        make_env("bandit", observation="pixels")


# ---------- mixtures and curricula


LAKE = "frozenlake:size=4,frozen_prob=0.8"


@pytest.mark.parametrize(
    "text, iteration, expected",
    [
        (LAKE, None, {LAKE: 1.0}),
        (f" {LAKE} ", 7, {LAKE: 1.0}),
        (f"{LAKE} + 2*sokoban", 0, {LAKE: 1 / 3, "sokoban": 2 / 3}),
        (f"0.5*{LAKE}+1.5 * bandit:pair=jobs", 0, {LAKE: 0.25, "bandit:pair=jobs": 0.75}),
        (".5*bandit + countdown + .5*bandit", 0, {"bandit": 0.5, "countdown": 0.5}),
        (f"{LAKE} @50 > sokoban", 0, {LAKE: 1.0}),
        (f"{LAKE} @50 > sokoban", 49, {LAKE: 1.0}),
        (f"{LAKE} @50 > sokoban", 50, {"sokoban": 1.0}),
        (f"{LAKE} @50 > sokoban", None, {"sokoban": 1.0}),
        ("bandit@1>bandit + 3*sokoban@ 20 > countdown", 0, {"bandit": 1.0}),
        ("bandit@1>bandit + 3*sokoban@ 20 > countdown", 1, {"bandit": 0.25, "sokoban": 0.75}),
        ("bandit@1>bandit + 3*sokoban@ 20 > countdown", 19, {"bandit": 0.25, "sokoban": 0.75}),
        ("bandit@1>bandit + 3*sokoban@ 20 > countdown", 20, {"countdown": 1.0}),
        ("bandit@1>bandit + 3*sokoban@ 20 > countdown", 10**9, {"countdown": 1.0}),
    ],
)
def test_stages_by_hand(text, iteration, expected):
    shares = mixture_at(text, iteration)
    assert shares == pytest.approx(expected) and list(shares) == list(expected)


def test_env_specs_by_hand():
    assert env_specs("") == ()
    text = "bandit@1>bandit + 3*sokoban@ 20 > countdown"
    assert env_specs(text, "", "sokoban + quest") == (
        "bandit",
        "sokoban",
        "countdown",
        "quest",
    )


STAGES = (
    "every stage but the last must end in @N, with N above 0 and rising, "
    "and the last must have no @N; got"
)
PART = r"must be ENV or WEIGHT\*ENV with a weight above 0"


@pytest.mark.parametrize(
    "text, message",
    [
        ("bandit > sokoban", STAGES),  # the first stage has no @N
        ("bandit @x > sokoban", STAGES),
        ("bandit @-5 > sokoban", STAGES),
        ("bandit @1.5 > sokoban", STAGES),
        ("bandit @0 > sokoban", STAGES),
        ("bandit @20 > sokoban @20 > countdown", STAGES),
        ("bandit @20 > sokoban @10 > countdown", STAGES),
        ("bandit @20 > sokoban > countdown", STAGES),
        ("bandit @20", STAGES),
        ("bandit @20 > sokoban @30", STAGES),
        ("", rf"'' in env='' {PART}"),
        ("bandit +", rf"'' in env='bandit \+' {PART}"),
        ("+ bandit", PART),
        ("bandit + + sokoban", PART),
        ("bandit @20 >", PART),
        ("@20 > bandit", PART),
        ("0*bandit", rf"'0\*bandit' in env='0\*bandit' {PART}"),
        ("0.0*bandit + sokoban", PART),
        ("-1*bandit", PART),
        ("nan*bandit", PART),
        ("2*", PART),
        ("2*3*bandit", PART),
        ("bandit sokoban", PART),
        ("bandit @20 > sokoban @x", PART),
        ("bandti", "unknown environment 'bandti' in env='bandti'; did you mean bandit"),
        ("bandit + 2*frozenlake:sise=3", "unknown option 'sise'"),
        ("sokobann @5 > bandit", "unknown environment 'sokobann'"),
    ],
)
def test_stages_that_are_refused(text, message):
    for iteration in (0, 25, None):
        with pytest.raises(ValueError, match=message):
            mixture_at(text, iteration)
