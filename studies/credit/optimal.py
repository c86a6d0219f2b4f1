"""Compute exact values of optimal play on FrozenLake and Sokoban.

The optimal player has the policy's limits on turns and actions. In each turn a player chooses 1 to
`actions_per_turn` actions, and sees their results only after the last one. The value of a state is
the largest expected sum of rewards from this state to the end of the game.
"""

from configurator import Config

import copy
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dialogue import Episode
from envs import make_env
from studies.credit.play import RecordedGame, copy_episode
from worlds.grids import FrozenLake, Sokoban
from worlds.planners import lake_transitions, move_sequences


def state_value(episode: Episode) -> float:
    """Return the expected sum of rewards of optimal play from now to the end of the episode."""
    config = episode.config
    env = episode.env
    turns_left = config.max_turns - episode.turn_idx
    if env.terminated or env.actions_left == 0 or turns_left == 0:
        return 0.0
    if isinstance(env, FrozenLake):
        values = _values_of_lake(env, config)  # (turns left, cell, actions left)
        return float(values[turns_left, env.player, env.actions_left])
    values = sokoban_values(env.instance, env.spec, config.actions_per_turn)
    return values.value(env.player, env.boxes, env.actions_left, turns_left)


def reply_value(episode: Episode, actions: list[str]) -> float:
    """Return the expected sum of rewards if `actions` are played now and optimal play follows.

    The sum leaves out the turn's format penalty and the bonus from `think_reward`."""
    env = episode.env
    legal = [action for action in actions if env.is_legal(action)]
    if isinstance(env, FrozenLake):
        return _lake_reply_value(episode, legal)
    twin = copy_episode(episode)
    twin.turn_idx += 1
    reward = sum(twin.env.step(action).reward for action in legal)
    return reward + state_value(twin)


# ---------- turns of games


def optimal_advantages(games: Sequence[RecordedGame]) -> np.ndarray:
    """Return the exact advantage of each reply under optimal play.

    The advantage is the expected sum of rewards if optimal play follows the reply, minus
    `state_value` before the reply. Returns: (K,) float64, for the K turns of all games."""
    found = []
    for game in games:
        for state, turn in zip(game.states, game.trajectory.turns, strict=True):
            extra = turn.reward - turn.record.env_reward  # format penalty and think bonus
            after = reply_value(state, turn.record.actions) + extra
            found.append(after - state_value(state))
    return np.array(found)


def planner_rewards(games: Sequence[RecordedGame]) -> np.ndarray:
    """Return the reward of each turn, plus the change of `state_value` in the turn.

    Returns: (K,) float64, for the K turns of all games."""
    found = []
    for game in games:
        values = [state_value(state) for state in game.states_and_end()]
        for k, turn in enumerate(game.trajectory.turns):
            found.append(turn.reward + values[k + 1] - values[k])
    return np.array(found)


def shuffle_within_games(
    credits: np.ndarray, games: Sequence[RecordedGame], rng: np.random.Generator
) -> np.ndarray:
    """Shuffle the credits of the turns within each game. Returns: (K,)."""
    pieces = np.split(credits, np.cumsum([game.num_turns for game in games])[:-1])
    return np.concatenate([rng.permutation(piece) for piece in pieces])


# ---------- FrozenLake


def _values_of_lake(env: FrozenLake, config: Config) -> np.ndarray:
    return lake_values(
        env.size,
        env.holes,
        env.goal,
        env.success_rate,
        config.actions_per_turn,
        env.max_actions,
        config.max_turns,
    )


@lru_cache(maxsize=256)
def lake_values(
    size: int,
    holes: frozenset[int],
    goal: int,
    success_rate: float,
    actions_per_turn: int,
    budget: int,
    max_turns: int,
) -> np.ndarray:
    """Return the probability that optimal play reaches the goal from each state.

    Returns: (max_turns + 1, cells, budget + 1) float64; axes: turns left, cell, actions left."""
    single_moves = lake_transitions(size, holes, goal, success_rate)
    sequences = move_sequences(single_moves, min(actions_per_turn, budget))
    values = np.zeros((max_turns + 1, size**2, budget + 1))
    values[:, goal] = 1.0
    for turns_left in range(1, max_turns + 1):
        best = values[turns_left]  # a view: writing to `best` fills `values`
        for length, (_, matrices) in enumerate(sequences, start=1):
            # axes: sequence, cell before the turn, actions left after the turn
            expected = (matrices @ values[turns_left - 1])[:, :, : budget + 1 - length]
            best[:, length:] = np.maximum(best[:, length:], expected.max(axis=0))
    return values


def _lake_reply_value(episode: Episode, legal: list[str]) -> float:
    env = episode.env
    names = [name.lower() for name in env.actions]
    single_moves = lake_transitions(env.size, env.holes, env.goal, env.success_rate)
    cells = np.zeros(env.size**2)  # probability that the player is in each cell
    cells[env.player] = 1.0
    # In `lake_transitions`, a player in the goal or a hole stays there. So actions after the end of
    # the game change nothing.
    for action in legal:
        cells = cells @ single_moves[names.index(action.strip().lower())]
    values = _values_of_lake(env, episode.config)
    turns_left = episode.config.max_turns - episode.turn_idx - 1
    return float(cells @ values[turns_left, :, env.actions_left - len(legal)])


# ---------- Sokoban


class SokobanValues:
    """Computes the largest sum of rewards from each state of a room by dynamic programming."""

    def __init__(self, env: Sokoban, actions_per_turn: int):
        self.env = env
        self.actions_per_turn = actions_per_turn
        self.cache: dict[tuple, float] = {}

    def value(
        self, player: int, boxes: tuple[int, ...], actions: int, turns: int, used: int = 0
    ) -> float:
        """Return the largest sum of rewards from a state to the end of the game.

        Args:
            actions: number of actions left in the game.
            turns: number of turns left in the game, the present turn included.
            used: number of actions already taken in the present turn."""
        if actions == 0 or turns == 0:
            return 0.0
        state = (player, boxes, actions, turns, used)
        if state not in self.cache:
            options = []
            if used:  # end the turn
                options.append(self.value(player, boxes, actions, turns - 1))
            if used < self.actions_per_turn:  # move once more
                options += [self._value_of_move(state, move) for move in range(4)]
            self.cache[state] = max(options)
        return self.cache[state]

    def _value_of_move(self, state: tuple, move: int) -> float:
        player, boxes, actions, turns, used = state
        twin = copy.copy(self.env)
        twin.player = player
        twin.boxes = boxes
        result = twin._move(move)
        if result.terminated:
            return result.reward
        return result.reward + self.value(twin.player, twin.boxes, actions - 1, turns, used + 1)


@lru_cache(maxsize=256)
def sokoban_values(instance: tuple, spec: str, actions_per_turn: int) -> SokobanValues:
    env = make_env(spec)
    env.start(instance, noise_seed=[0])
    return SokobanValues(env, actions_per_turn)
