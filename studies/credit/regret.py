"""Measure how much reward a policy loses compared with optimal play, and which choices lose it.

    python -m studies.credit.regret config/frozenlake_ppo.py config/models/tiny.py \\
        --model=tiny,out/run/policy

The policy plays --group_size games on each of --num_groups training boards. The loss of a turn is
V - Q(a): the expected reward of optimal play, minus the expected reward of the policy's actions
followed by optimal play. The loss is the sum of two parts:

    too long = max_n Q(a[:n]) - Q(a)    # is 0 if the turn ends after the best number of actions
    the rest = V - max_n Q(a[:n])

    a         legal actions of the turn
    V         expected reward of optimal play from the state before the turn to the end of the game
    Q(a[:n])  expected reward of the first n >= 1 actions, followed by optimal play
"""

from configurator import Config, UserError, load_config

from rollout import make_episode
from support.terminal import run_main
from worlds.grids import Grid


def read_regret(argv: list[str]) -> tuple[Config, dict[str, str]]:
    """Return the settings, and a dict that maps each setting to the source of its value.

    Raises: UserError if the environment is not frozenlake or sokoban."""
    config, _, sources = load_config(argv)
    if not isinstance(make_episode(config).env, Grid):
        raise UserError(f"studies.credit.regret needs frozenlake or sokoban, got env={config.env}")
    return config, sources


if __name__ == "__main__":
    run_main(read_regret)  # reports wrong arguments before the slow imports

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dialogue import Chat
from engine import make_engine
from model import Policy, load_model, pick_device
from parallel import sync_weights
from studies.credit.optimal import reply_value, state_value
from studies.credit.play import Player, RecordedGame, play_groups
from support.arguments import split_models
from support.no_effect import GAME, REWARDS, SAMPLING, print_unread
from support.statistics import jackknife_interval
from tools.plotting.tables import markdown

SETTINGS_READ = f"{GAME} {REWARDS} {SAMPLING} seed num_groups group_size temperature"
HEADINGS = (
    "model",
    "games won %",
    "loss per game",
    "too long",
    "the rest",
    "actions a turn",
    "of the best player, in the same states",
)


class Losses(NamedTuple):
    """The two parts of the expected reward that a game loses compared with optimal play."""

    too_long: float  # loss from the actions after the best moment to end a turn
    rest: float


def main(argv: list[str]) -> None:
    config, sources = read_regret(argv)
    print_unread("studies.credit.regret", SETTINGS_READ, sources)
    rows = []
    for name in split_models(config.model):
        games = played_by(name, config)
        rows.append([name, *cells(games, config.group_size)])
    print("\n".join(markdown(HEADINGS, rows)))


def played_by(name: str, config: Config) -> list[RecordedGame]:
    """Return the games that a model plays. Every model plays the same boards."""
    model, tokenizer = load_model(name, device=pick_device(config.device))
    chat = Chat(tokenizer)
    engine = make_engine(config, model, chat)
    sync_weights(engine, Policy(model))
    games = play_groups(Player(engine, chat, config), config.num_groups, config.group_size)
    engine.close()
    return games


def losses_of(game: RecordedGame) -> Losses:
    too_long = 0.0
    rest = 0.0
    for state, turn in zip(game.states, game.trajectory.turns, strict=True):
        actions = [action for action in turn.record.actions if state.env.is_legal(action)]
        value = reply_value(state, actions)
        beginnings = [actions[:count] for count in range(1, len(actions) + 1)]
        best = max([reply_value(state, beginning) for beginning in beginnings], default=value)
        too_long += best - value
        rest += state_value(state) - best
    return Losses(too_long, rest)


def cells(games: Sequence[RecordedGame], group_size: int) -> list[str]:
    """Return a model's row of the table, without the first cell (the name of the model)."""
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
    return [f"{100 * wins:.1f}", *texts, shares(counts), planned(games)]


def planned(games: Sequence[RecordedGame]) -> str:
    """In each state before a turn, count the actions that the environment's planner would choose.

    Format the counts with `shares`."""
    counts = Counter()
    for game in games:
        for state in game.states:
            turns_left = state.config.max_turns - state.turn_idx
            counts[len(state.env.plan(state.config.actions_per_turn, turns_left))] += 1
    return shares(counts)


def shares(counts: Counter) -> str:
    """Format the share of turns for each number of actions, such as '1: 40%, 2: 60%'.

    Args: counts: maps each number of actions to the number of turns with that many actions."""
    total = sum(counts.values())
    return ", ".join(f"{count}: {number / total:.0%}" for count, number in sorted(counts.items()))


if __name__ == "__main__":
    run_main(main)
