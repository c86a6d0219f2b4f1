"""What does a policy lose against optimal play, and in which of its choices?

    python -m tools.regret config/frozenlake_ppo.py config/tiny.py --models=base,out/run/policy

It plays --num_groups training boards, --group_size games each, at --temperature, and computes the
exact value of optimal play under the same limits (tools/credit_optimal.py). The loss of a turn is
the value before it minus the value of its actions, slips averaged over. It has two parts:

- too many: what the policy would win back if it named only the best number of its actions;
- wrong way: the rest, so what even the best beginning of its actions loses.

The losses of a game, summed over its turns, are on average the gap to optimal play.
"""

from configurator import Config, UserError, load_config, run_main

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dialogue import Chat
from engine import make_engine
from grids import Grid
from model import Policy, load_model, pick_device
from parallel import sync_weights
from rollout import make_episode
from support.statistics import jackknife_interval
from tools import tables
from tools.credit_optimal import reply_value, state_value
from tools.credit_play import Player, RecordedGame, play_groups

LONGEST_PLAN = 3  # actions; longer plans on slippery ice take long to find


class Losses(NamedTuple):
    """What one game loses against optimal play, in units of the reward."""

    too_many: float
    wrong_way: float


def main(argv: list[str]) -> None:
    config, options, _ = load_config(argv, extra={"models": "base"})
    if not isinstance(make_episode(config).env, Grid):
        raise UserError(f"tools.regret needs frozenlake or sokoban, got env={config.env}")
    rows = []
    for name in options["models"].split(","):
        games = played_by(name, config)
        rows.append([name, *cells(games, config.group_size)])
    rows.append(["best player, in the states of the last model", *[""] * 4, planned(games)])
    headings = ["model", "games won %", "lost a game", "too many", "wrong way", "actions a turn"]
    print("\n".join(tables.markdown(headings, rows)))


def played_by(name: str, config: Config) -> list[RecordedGame]:
    """The games of a model. All models play the same boards."""
    model, tokenizer = load_model(name, device=pick_device(config.device))
    chat = Chat(tokenizer)
    engine = make_engine(config, model, chat)
    sync_weights(engine, Policy(model))
    games = play_groups(Player(engine, chat, config), config.num_groups, config.group_size)
    engine.close()
    return games


def losses_of(game: RecordedGame) -> Losses:
    """The two parts of what a game loses, summed over its turns."""
    too_many = 0.0
    wrong_way = 0.0
    for state, turn in zip(game.states, game.trajectory.turns, strict=True):
        actions = [action for action in turn.record.actions if state.env.is_legal(action)]
        value = reply_value(state, actions)
        beginnings = [actions[:count] for count in range(1, len(actions) + 1)]
        best = max([reply_value(state, beginning) for beginning in beginnings], default=value)
        too_many += best - value
        wrong_way += state_value(state) - best
    return Losses(too_many, wrong_way)


def cells(games: Sequence[RecordedGame], group_size: int) -> list[str]:
    """A line of the table: games won, losses with 95 % intervals over boards, actions a turn."""
    losses = np.array([losses_of(game) for game in games])  # (games, 2)
    columns = np.column_stack([losses.sum(1), losses])  # (games, 3)
    boards = np.arange(len(games)) // group_size
    means, half_widths = jackknife_interval(lambda mask: columns[mask].mean(0), boards)
    wins = np.mean([game.trajectory.success for game in games])
    counts = Counter()
    for game in games:
        counts.update(len(turn.record.actions) for turn in game.trajectory.turns)
    texts = []
    for mean, half_width in zip(means, half_widths, strict=True):
        texts.append(f"{mean:.3f} [{mean - half_width:.3f}, {mean + half_width:.3f}]")
    return [f"{100 * wins:.1f}", *texts, shares(counts)]


def planned(games: Sequence[RecordedGame]) -> str:
    """How many actions the best player names in the states of these games."""
    counts = Counter()
    for game in games:
        for state in game.states:
            turns_left = state.config.max_turns - state.turn_idx
            most = min(state.config.actions_per_turn, LONGEST_PLAN)
            counts[len(state.env.plan(most, turns_left))] += 1
    return shares(counts)


def shares(counts: Counter) -> str:
    """Shares of the turns by their number of actions, as in '1: 40 %, 2: 60 %'."""
    total = sum(counts.values())
    return ", ".join(f"{count}: {number / total:.0%}" for count, number in sorted(counts.items()))


if __name__ == "__main__":
    run_main(main)
