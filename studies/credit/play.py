"""Continue games from the exact state before a turn, to estimate the state's value (Monte Carlo).

The mean return of m continuations with new random numbers is an unbiased estimate of the value of
the state under the policy that plays.
"""

from __future__ import annotations

from configurator import Config

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from dialogue import Chat, Episode
from rollout import Reply, Rollout, RolloutScheduler, Trajectory, make_episode

if TYPE_CHECKING:  # engine.py imports torch, which takes seconds
    from engine import Engine

# Each purpose has its own random stream.
SEED_BOARDS = 61  # choice of boards
SEED_GAMES = 62  # sampling of tokens
SEED_BEFORE = 63  # continuations from the state before a turn
SEED_REPLY = 64  # continuations that first repeat the turn's reply


class RecordedGame(Rollout):
    """A rollout that keeps a copy of its episode before every turn."""

    def __init__(self, episode: Episode, seed: Sequence[int], *, member: int = 0):
        super().__init__(episode, seed, member=member)
        self.states: list[Episode] = []  # before each turn

    def execute(self, text: str):
        self.states.append(copy_episode(self.episode))
        return super().execute(text)

    @property
    def num_turns(self) -> int:
        return len(self.trajectory.turns)

    def states_and_end(self) -> list[Episode]:
        return [*self.states, self.episode]


def copy_episode(episode: Episode) -> Episode:
    """Return an independent copy of the episode.

    The copy will draw the same random numbers as the original."""
    twin = copy.copy(episode)
    twin.env = copy.deepcopy(episode.env)
    twin.plan_lengths = list(episode.plan_lengths)
    return twin


def restore(game: RecordedGame, turn: int) -> RecordedGame:
    """Return a copy of the game as it was before turn number `turn`, counted from 0."""
    trajectory = game.trajectory
    twin = RecordedGame(copy_episode(game.states[turn]), trajectory.seed, member=trajectory.member)
    twin.trajectory.system = trajectory.system
    twin.trajectory.turns = trajectory.turns[:turn]
    twin.user = trajectory.turns[turn].observation
    twin.states = game.states[:turn]
    return twin


def freshen(game: RecordedGame, purpose: int, draw: int) -> None:
    """Give a restored game new random numbers for slips of moves and for the sampling of tokens.

    Args: purpose: SEED_BEFORE or SEED_REPLY. draw: index of the continuation."""
    trajectory = game.trajectory
    numbers = (*trajectory.seed, trajectory.member, game.num_turns, purpose)
    game.episode.env.rng = np.random.default_rng([*numbers, draw])
    trajectory.seed = numbers
    trajectory.member = draw


def repeat_reply(game: RecordedGame, original: Trajectory) -> None:
    """In a restored game, execute the reply that the original game had in the same turn.

    If `freshen` was called first, new random numbers decide which moves of the reply slip."""
    turn = original.turns[game.num_turns]
    reply = Reply(
        turn.text,
        turn.prompt_ids,
        turn.response_ids,
        turn.rollout_logprobs,
        cut_by=turn.record.cut_by,
    )
    game.add_turn(reply, game.execute(turn.text))


# ---------- playing on an engine


@dataclass
class Player:
    """An engine with a policy, and the settings of the games that the policy plays."""

    engine: Engine
    chat: Chat
    config: Config

    def play(self, games: Sequence[RecordedGame], noise_seed: Sequence[int]) -> None:
        """Play all games concurrently, each from its present state to its end."""
        under_way = [game for game in games if not game.done]
        scheduler = ContinuingScheduler(
            self.engine,
            self.chat,
            self.config,
            under_way,
            temperature=self.config.temperature,
            noise_seed=noise_seed,
        )
        scheduler.run()


class ContinuingScheduler(RolloutScheduler):
    """A scheduler that can start with games that already have turns."""

    def _request_first_turn(self, key: int) -> None:
        trajectory = self.rollouts[key].trajectory
        if not trajectory.turns:
            super()._request_first_turn(key)
            return
        if not self.config.context_turns:
            self.histories[key] = trajectory.ids
        self._request_next_turn(key)


def play_groups(player: Player, num_groups: int, group_size: int) -> list[RecordedGame]:
    """Play `group_size` games on each of `num_groups` training boards, chosen by `config.seed`."""
    config = player.config
    games = []
    for group, member in product(range(num_groups), range(group_size)):
        seed = (config.seed, SEED_BOARDS, group)
        game = RecordedGame(make_episode(config), seed, member=member)
        game.reset("train")
        games.append(game)
    player.play(games, (config.seed, SEED_GAMES))
    return games


@dataclass
class Continuations:
    """The undiscounted returns of games that were continued from each of K turns."""

    before: np.ndarray  # (K, m) returns of m games that go on from the state before each turn
    reply: np.ndarray  # (K, m) returns of m games that repeat each turn's reply, then go on
    # For each turn, the first of the m games that repeat the reply. The returns of these K games
    # are `reply[:, 0]`.
    alternatives: list[RecordedGame]


def monte_carlo(player: Player, games: Sequence[RecordedGame], num_draws: int) -> Continuations:
    """Continue every game `num_draws` times from the state before each turn, and `num_draws` times
    after each reply.

    Each continuation after a reply first executes the reply again, with new slips. So a lucky slip
    in the original game does not raise the estimated value of the reply.
    """
    turns = [(game, turn) for game in games for turn in range(game.num_turns)]
    from_states = []
    after_replies = []
    for game, turn in turns:
        for draw in range(num_draws):
            continuation = restore(game, turn)
            freshen(continuation, SEED_BEFORE, draw)
            from_states.append(continuation)
        for draw in range(num_draws):
            continuation = restore(game, turn)
            freshen(continuation, SEED_REPLY, draw)
            repeat_reply(continuation, game.trajectory)
            after_replies.append(continuation)
    player.play([*from_states, *after_replies], (player.config.seed, SEED_GAMES))
    turn_of = np.repeat([turn for _, turn in turns], num_draws)
    shape = (len(turns), num_draws)
    return Continuations(
        before=returns_from(from_states, turn_of).reshape(shape),
        reply=returns_from(after_replies, turn_of).reshape(shape),
        alternatives=after_replies[::num_draws],
    )


def returns_from(games: Sequence[RecordedGame], turns: Sequence[int]) -> np.ndarray:
    returns = []
    for game, turn in zip(games, turns, strict=True):
        returns.append(sum(played.reward for played in game.trajectory.turns[turn:]))
    return np.array(returns)
