"""Tests of tools/crowd.py: players whose games the tiny base model is pretrained on."""

from configurator import load_config

from dataclasses import replace

import numpy as np
import pytest
from shared_fixtures import config_file

from envs import make_env
from tools import crowd
from tools.crowd import careful, choose_actions, play_crowd

ROOT = crowd.__file__.rsplit("/", 2)[0]


def lake(holes, player, goal, success_rate=1.0):
    env = make_env(f"frozenlake:success_rate={success_rate}")
    env.start(("frozenlake", 4, holes, player, goal), [0])
    return env


def room(floor, targets, player, boxes):
    env = make_env("sokoban:size=6")
    env.start(("sokoban", "default", 6, floor, targets, player, boxes), [0])
    return env


def choices(env, num_draws=50):
    """Return the moves that the careful player chooses in `num_draws` calls. Each call chooses at
    random among the moves of lowest cost."""
    rng = np.random.default_rng(0)
    return {careful(env, rng) for _ in range(num_draws)}


def test_the_greedy_player_walks_into_holes_and_the_careful_one_around_them():
    # player P, holes O, goal G:
    # P___
    # O___
    # G___
    # ____
    env = lake((4,), 0, 8)
    rng = np.random.default_rng(0)
    assert choose_actions("greedy", env, 3, 5, rng) == ["Down"]
    # The edge stops Left and Up, so the player stays at Manhattan distance 2 from the goal. Left
    # costs more than Up, because Left could slip down into the hole, and Up could not. The careful
    # player avoids Left even on ice that is not slippery.
    assert choices(env) == choices(lake((4,), 0, 8, success_rate=0.8)) == {"Up"}


def test_players_choose_several_steps_ahead_without_touching_the_game():
    # P___
    # _O__
    # ____
    # ___G
    env = lake((5,), 0, 15)
    draws = env.rng.bit_generator.state
    rng = np.random.default_rng(0)
    assert choose_actions("greedy", env, 5, 5, rng) == ["Down", "Down", "Down", "Right", "Right"]
    # The goal is six moves away, and two turns are left. A plan has at most LONGEST_PLAN = 3 moves,
    # so the planner needs three moves in each turn.
    assert choose_actions("planner", env, 5, 2, rng) == ["Down", "Down", "Down"]
    assert len(choose_actions("random", env, 4, 5, rng)) == 4
    assert (env.player, env.num_actions, env.rng.bit_generator.state) == (0, 0, draws)


def test_the_careful_player_never_pushes_a_box_into_a_corner():
    # ######
    # #_PX_#      player P, box X, target O
    # #___O#
    # #____#
    # ######
    # ######
    floor = tuple(row * 6 + col for row in (1, 2, 3) for col in (1, 2, 3, 4))
    # A push to the right brings the box nearer to the target, but into a corner.
    env = room(floor, (16,), 8, (9,))
    assert env.greedy() == "Right"
    assert "Right" not in choices(env)
    corners = [cell for cell in floor if env.in_corner(cell)]
    assert corners == [7, 10, 19, 22]


def test_the_careful_player_pushes_a_box_into_a_corner_that_is_a_target():
    # ######
    # #_PXO#
    # #____#
    # #____#
    # ######
    floor = tuple(row * 6 + col for row in (1, 2, 3) for col in (1, 2, 3, 4))
    assert choices(room(floor, (10,), 8, (9,))) == {"Right"}


@pytest.mark.slow
@pytest.mark.parametrize("files", [("frozenlake_ppo",), ("sokoban_ppo",)])
def test_players_are_ordered_by_what_they_see(files):
    config, _, _ = load_config([config_file(file) for file in files])
    config = replace(config, eval_size=128, eval_split="heldout")
    rates = [play_crowd(name, config, 2).mean() for name in (*crowd.SHARES, "planner")]
    assert min(np.diff(rates)) > 0.05
