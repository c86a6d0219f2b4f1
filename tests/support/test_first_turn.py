"""Tests of check_first_turn(), which tries a first turn before a run.

Other tests below check the time limit for drawing an instance, and that games start at the same
time.
"""

from configurator import UserError

import threading

import pytest
from fuzz import Script
from shared_fixtures import small_config

import dialogue
import envs
from envs import make_env, reserved_instances
from eval import play_reference
from rollout import collect, make_episode
from support.arguments import read_eval, read_train
from support.preflight import check_first_turn
from tools.sft import read_sft

CODE = """
import random
from envs import Env

class Words(Env):
    actions = ("a", "b")
    builds = 0

    def __init__(self, **common):
        super().__init__(**common)
        Words.builds += 1
        self.words = ["ant", "bee", "cat"]
        BUILD

    def draw(self, rng):
        DRAW
        return ("word", int(rng.integers(3)), int(rng.integers(10**6)))

    def _start(self, instance):
        START
        self.index = instance[1]

    def _move(self, index):
        MOVE
        return 1.0, True, True, True

    def observe(self):
        return self.words[self.index]

    def rules(self):
        return "Choose."

    def plan(self, max_actions, turns_left):
        return ["a"]
"""
DRAW = 'return ("word", 0, self.build + int(rng.integers(10**6)))'
PLACES = ("BUILD", "DRAW", "START", "MOVE")


def spec_of(folder, **lines):
    """Write CODE to words.py in `folder`, and return the spec of the environment in words.py.

    Each of BUILD, DRAW, START and MOVE is replaced by its value in `lines`, or else by `pass`.
    """
    code = CODE
    for place in PLACES:
        code = code.replace(place, lines.get(place, "pass"))
    path = folder / "words.py"
    path.write_text(code)
    return f"{path}:Words"


def check(spec, limit_s=5.0):
    check_first_turn(spec, "grid", 10, limit_s)


def test_a_healthy_environment_passes(tmp_path):
    check(spec_of(tmp_path))


@pytest.mark.parametrize(
    "lines",
    [
        {"BUILD": "self.words = [str(random.random())] * 3"},
        {"BUILD": "self.words = self.words[Words.builds % 2 :] * 2"},
        {"BUILD": "self.actions = ('a', f'b{Words.builds}')"},
        {"BUILD": "self.build = Words.builds", "DRAW": DRAW},
    ],
)
def test_an_environment_that_is_random_when_it_is_built(tmp_path, lines):
    message = "words.py:Words' is random when it is built: with equal seeds, one environment gave"
    with pytest.raises(UserError, match=message):
        check(spec_of(tmp_path, **lines))


def test_a_lake_of_gymnasium_with_a_random_map():
    pytest.importorskip("gymnasium")
    check("gymnasium:FrozenLake-v1")
    with pytest.raises(UserError, match="FrozenLake-v1,settings=map_name=None' is random when"):
        check("gymnasium:FrozenLake-v1,settings=map_name=None")


@pytest.mark.parametrize("place", ["START", "MOVE"])
def test_games_that_never_begin(tmp_path, place):
    spec = spec_of(tmp_path, **{place: "import time; time.sleep(60)"})
    message = "could not play the first turn of 3 evaluation games; .* no answer within 0.2 s$"
    with pytest.raises(UserError, match=message):
        check(spec, limit_s=0.2)


def test_one_broken_game_of_the_evaluation_is_no_reason_to_refuse(tmp_path):
    spec = spec_of(
        tmp_path,
        START="assert instance[2] != self.broken",
        BUILD="Words.broken = getattr(Words, 'broken', -1)",
    )
    kind = type(make_env(spec))
    check(spec)
    kind.broken = reserved_instances(spec)["eval"][0][2]
    check_first_turn.cache_clear()
    check(spec)


COMMANDS = {
    read_train: ["config/bandit_grpo.py", "config/models/tiny.py"],
    read_eval: ["config/bandit_grpo.py", "--player=optimal"],
    read_sft: ["config/bandit_grpo.py", "config/models/tiny.py", "--sft_steps=1"],
}


@pytest.mark.parametrize("read", COMMANDS)
def test_every_command_compares_environments_first(tmp_path, read):
    spec = spec_of(tmp_path, BUILD="self.words = [str(Words.builds)] * 3")
    with pytest.raises(UserError, match="is random when it is built"):
        read([*COMMANDS[read], f"--env={spec}", f"--out_dir={tmp_path / 'out'}"])


def test_a_later_stage_of_a_curriculum_is_tried_too(tmp_path):
    spec = spec_of(tmp_path, BUILD="self.words = [str(Words.builds)] * 3")
    argv = [*COMMANDS[read_train], f"--env=bandit @5 > {spec} @9 > bandit"]
    with pytest.raises(UserError, match="is random when it is built"):
        read_train([*argv, f"--out_dir={tmp_path / 'out'}"])


# ---------- draws that never end


def test_a_draw_that_never_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(envs, "DRAW_LIMIT_S", 0.2)
    spec = spec_of(tmp_path, DRAW="while True: pass")
    message = "drew no instance in 0.2 s; its options may ask for something impossible"
    with pytest.raises(UserError, match=message):
        make_episode(small_config(env=spec))


# ---------- environments that wait


@pytest.fixture
def meeting(monkeypatch):
    barrier = threading.Barrier(4)
    reset = dialogue.Episode.reset

    def meet(episode, *args, **options):
        barrier.wait(timeout=10)
        return reset(episode, *args, **options)

    monkeypatch.setattr(envs.Env, "blocking", True)
    monkeypatch.setattr(dialogue.Episode, "reset", meet)
    return barrier


def test_environments_that_wait_start_at_the_same_time(chat, meeting):
    reply = [*chat.encode("<answer>Left</answer>"), chat.end]
    starts = [((4, 0), member) for member in range(4)]
    options = dict(split="train", temperature=1.0, noise_seed=(7,))
    played = collect(Script(reply), chat, small_config(), starts, **options)
    assert [trajectory.error for trajectory in played] == [None] * 4


def test_reference_players_play_them_at_the_same_time(monkeypatch, meeting):
    played = play_reference(small_config(eval_size=4), "greedy")
    assert [trajectory.error for trajectory in played] == [None] * 4
    assert [trajectory.seed for trajectory in played] == [(0,), (1,), (2,), (3,)]
    monkeypatch.undo()
    one_by_one = play_reference(small_config(eval_size=4), "greedy")
    texts = [[turn.text for turn in trajectory.turns] for trajectory in played]
    assert texts == [[turn.text for turn in trajectory.turns] for trajectory in one_by_one]
