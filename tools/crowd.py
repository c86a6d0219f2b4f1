"""The crowd: scripted players of FrozenLake and Sokoban.

The corpus of the tiny base model (studies/base_model) has games of these players:
- random: takes random actions.
- greedy: in FrozenLake, goes straight to the goal and ignores holes. In Sokoban, this player brings
  boxes near targets.
- careful: plays like greedy, but takes a bad move only if all moves are bad. A bad move goes
  straight into a hole, or pushes a box into a corner without a target. In FrozenLake, this player
  prefers moves that end near the goal. Each hole into which a move could slip counts as one more
  cell of distance.
- planner: plays optimally (worlds/planners.py) with a limit of 1 to 3 actions a turn. The limit is
  drawn again in each turn.

    python -m tools.crowd config/frozenlake_ppo.py              # the success of each player
    python -m tools.crowd config/sokoban_ppo.py --samples=16
"""

from configurator import Config, UserError, load_config

import copy
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from dialogue import Episode, format_response
from rollout import Reply, Rollout, make_episode, play
from support.no_effect import GAME, REWARDS, print_unread
from support.statistics import rate_text
from support.terminal import run_main
from worlds.grids import FrozenLake, Grid, Sokoban
from worlds.planners import lake_neighbour, sokoban_move
from worlds.sokoban_rooms import manhattan_distance

SETTINGS_READ = f"{GAME} {REWARDS} eval_split eval_size"
SEED_CROWD = 15  # makes the random streams of this file differ from those of other files
# maps a player to its share of the games that the planner does not play
SHARES = {"random": 0.3, "greedy": 0.4, "careful": 0.3}
# For each game, draw_player draws the probability that a turn has random actions, uniformly between
# 0 and MAX_RANDOM_SHARE.
MAX_RANDOM_SHARE = 0.2
LONGEST_PLAN = 3  # actions; in FrozenLake, longer plans are slow to compute

# The cost of a move; the lowest is best. Costs are compared as tuples: a later number counts only
# if all earlier numbers are equal.
Cost = tuple[float, ...]


class Player(NamedTuple):
    """A scripted player."""

    name: str
    errors: float = 0.0  # probability that a turn has random actions


def draw_player(rng: np.random.Generator, planners: float) -> Player:
    """Draw the player of a game, and the probability that a turn has random actions.

    Args: planners: probability that the planner plays."""
    name = "planner"
    if rng.random() >= planners:
        name = str(rng.choice(list(SHARES), p=list(SHARES.values())))
    return Player(name, errors=rng.random() * MAX_RANDOM_SHARE)


def crowd_reply(episode: Episode, player: Player, rng: np.random.Generator) -> str:
    """Return a reply: a thought with true statements about the board, and the player's actions.
    With probability `player.errors`, the actions are random."""
    name = "random" if rng.random() < player.errors else player.name
    actions = turn_actions(name, episode, rng)
    thought = " ".join(episode.env.statements())
    return format_response(thought, actions, think=episode.config.think)


def turn_actions(player: str, episode: Episode, rng: np.random.Generator) -> list[str]:
    """Return a player's actions for this turn. The maximum number of actions is random."""
    config = episode.config
    most = min(config.actions_per_turn, episode.env.actions_left)
    count = int(rng.integers(1, most + 1))
    turns_left = config.max_turns - episode.turn_idx
    return choose_actions(player, episode.env, count, turns_left, rng)


def choose_actions(
    player: str, env: Grid, count: int, turns_left: int, rng: np.random.Generator
) -> list[str]:
    """Return 1 to `count` actions of a player for one turn."""
    actions = []
    if player == "planner":
        actions = env.plan(min(count, LONGEST_PLAN), turns_left)
    elif player == "greedy":
        actions = step_by_step(env, count, lambda scratch: scratch.greedy())
    elif player == "careful":
        actions = step_by_step(env, count, lambda scratch: careful(scratch, rng))
    return actions or env.random(count, rng)


def step_by_step(env: Grid, count: int, choose: Callable[[Grid], str]) -> list[str]:
    """Choose up to `count` actions one by one, as if no move slipped."""
    scratch = copy.copy(env)
    scratch.rng = np.random.default_rng(0)  # leaves the game's random generator untouched
    if isinstance(scratch, FrozenLake):
        scratch.success_rate = 1.0
    actions = []
    while len(actions) < count and not scratch.terminated:
        actions.append(choose(scratch))
        scratch.step(actions[-1])
    return actions


def careful(env: Grid, rng: np.random.Generator) -> str:
    """Return a random move among the moves with the lowest cost."""
    cost_of = lake_cost if isinstance(env, FrozenLake) else sokoban_cost
    costs = [cost_of(env, index) for index in range(4)]
    best = [index for index in range(4) if costs[index] == min(costs)]
    return env.actions[rng.choice(best)]


def lake_cost(env: FrozenLake, index: int) -> Cost:
    """Return the cost of a move as two values. The first value says whether the move goes straight
    into a hole. The second value is the distance from the cell straight ahead to the goal, plus the
    number of holes into which the move could slip. These holes count even if the ice is not
    slippery."""
    ahead, *sides = [lake_neighbour(env.size, env.player, (index + i) % 4) for i in (0, -1, 1)]
    slips = sum(side in env.holes for side in sides)
    distance = manhattan_distance(env.size, ahead, env.goal)
    return ahead in env.holes, distance + slips


def sokoban_cost(env: Sokoban, index: int) -> Cost:
    """Return the cost of a move as three values. The first value says whether a box is stuck in a
    corner without a target after the move. The second value is the sum of the distances of the
    boxes to their nearest targets. The third value is the distance of the player to a box, which
    `Sokoban.cost_after` chooses. A blocked move counts as if no box were stuck, so a blocked move
    costs less than a move that leaves a box stuck."""
    moved = sokoban_move(env.floor, env.player, env.boxes, env.deltas[index])
    is_stuck = False
    if moved is not None:
        _, boxes = moved
        is_stuck = any(env.in_corner(box) for box in boxes if box not in env.targets)
    return is_stuck, *env.cost_after(index)


# ---------- how well the players play


def play_crowd(player: str, config: Config, samples: int) -> np.ndarray:
    """Let a player play `samples` games on each fixed prompt of a config.

    Returns: the share of games that the player wins on each prompt, shape (1, eval_size)."""
    wins = np.zeros((config.eval_size, samples))
    for index, member in product(range(config.eval_size), range(samples)):
        rng = np.random.default_rng([SEED_CROWD, index, member])
        rollout = Rollout(make_episode(config), (index,), member=member)
        rollout.reset(config.eval_split)
        wins[index, member] = play(rollout, partial(reply_without_thought, player, rng)).success
    return wins.mean(axis=1)[None]


def reply_without_thought(player: str, rng: np.random.Generator, rollout: Rollout) -> Reply:
    """Return a reply with the actions of a player of the crowd, without a thought."""
    actions = turn_actions(player, rollout.episode, rng)
    return Reply(format_response("", actions, think=rollout.config.think))


def main(argv: list[str]) -> None:
    config, options, sources = load_config(argv, extra={"samples": 1})
    if options["samples"] < 1:
        raise UserError(f"samples must be 1 or more, got {options['samples']}")
    if not isinstance(make_episode(config).env, Grid):
        raise UserError(f"the crowd plays frozenlake and sokoban, got env={config.env!r}")
    print_unread("tools.crowd", SETTINGS_READ, sources)
    print("| player | success % [95 %] |\n|---|---|")
    for player in (*SHARES, "planner"):
        wins = play_crowd(player, config, options["samples"])
        print(f"| {player} | {rate_text(wins)} |")


if __name__ == "__main__":
    run_main(main)
