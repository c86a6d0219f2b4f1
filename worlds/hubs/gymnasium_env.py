"""The environments of gymnasium with discrete actions, as `--env=gymnasium:ID`.

The package is optional. The policy sees the text of the environment's "ansi" renderer, the
numbers of the observation, or both. For environments outside the table KNOWN below, options can
name the actions and numbers, and say which games are won:

    --env=gymnasium:my_package:Lights-v0,names=on/off,values=brightness/hour,success=end
"""

from configurator import UserError

import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from envs import Move, make_env, show
from worlds.hubs.hub import REQUIREMENTS, Hub, parse_settings
from worlds.text.base import require_package

# In the rendered text of FrozenLake and Taxi, a background colour marks the player's cell.
# `_describe` puts the cell in [ ] instead.
PLACE = re.compile(r"\x1b\[4\dm(.*?)\x1b\[0m")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LAST_ACTION = re.compile(r"\s*\(\w+\)")  # the line in which a renderer shows the last action
MAX_NUMBERS = 50  # largest count of numbers that an observation may show
GAMMA = 0.99  # discount factor in `best_actions`
SUCCESSES = ("reward", "end", "limit")


class Known(NamedTuple):
    """Texts and settings of an environment that needs no options.

    For each of the options `names`, `values` and `success` that is not set, `Gymnasium` uses the
    field of the same name.
    """

    names: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    success: str = "reward"
    max_reward: float = 1.0
    rules: str = ""


KNOWN = {
    "FrozenLake": Known(
        names=("left", "down", "right", "up"),
        rules="Walk over ice (F) from S to the goal G, around the holes H. [ ] is your place. You "
        "may slip.",
    ),
    "Taxi": Known(
        names=("south", "north", "east", "west", "pickup", "dropoff"),
        values=("taxi row", "taxi column", "passenger", "destination"),
        success="end",
        max_reward=20.0,
        rules="Drive the taxi [ ] to the passenger, pick up, drive to the destination, drop off. "
        "Passenger and destination: 0 R, 1 G, 2 Y, 3 B; passenger 4 is in the taxi. Walls: | "
        "Reward -1 a step, -10 for a wrong pickup or dropoff, 20 at the end.",
    ),
    "CliffWalking": Known(
        names=("up", "right", "down", "left"),
        success="end",
        rules="Walk (x) to the target T. Reward -1 a step, and -100 on the cliff C, from where you "
        "start again.",
    ),
    "Blackjack": Known(
        names=("stick", "hit"),
        values=("your sum", "dealer's card", "usable ace"),
        rules="Blackjack: come nearer to 21 than the dealer, but not above.",
    ),
    "CartPole": Known(
        names=("left", "right"),
        values=("cart position", "cart velocity", "pole angle", "pole velocity"),
        success="limit",
        max_reward=500.0,
        rules="Push the cart so that the pole stays up.",
    ),
    "MountainCar": Known(
        names=("left", "coast", "right"),
        values=("position", "velocity"),
        success="end",
        rules="Drive up the hill on the right: reach position 0.5. The car must swing.",
    ),
    "Acrobot": Known(
        names=("left", "nothing", "right"),
        values=("cos 1", "sin 1", "cos 2", "sin 2", "velocity 1", "velocity 2"),
        success="end",
        rules="Swing the tip of two linked rods up.",
    ),
}


class Gymnasium(Hub):
    """An environment of gymnasium. `name` is its id, such as Taxi-v4.

    - `names`: names of the actions, such as up/down.
    - `values`: names of the numbers in an observation, such as row/column.
    - `success`: which games are won. With "end", a game is won if it ends by itself, not by the
      environment's limit of steps. With "reward", a game is won if it ends by itself and
      the last reward is above 0. With "limit", a game is won if it lasts until the limit.
    - `settings`: arguments for gymnasium.make, such as is_slippery=False;map_name=8x8.
    """

    runs_programs = True  # gymnasium imports the module in an id such as my_package:Lights-v0

    def __init__(
        self,
        *,
        name: str = "",
        names: str = "",
        values: str = "",
        success: str = "",
        settings: str = "",
        splits: str = "seen",
        **common,
    ):
        super().__init__(splits=splits, **common)
        require_package("gymnasium", REQUIREMENTS)
        known = KNOWN.get(name.split("/")[-1].split("-")[0], Known())
        self.name = name
        self.success = success or known.success
        if self.success not in SUCCESSES:
            raise UserError(f"success must be one of {', '.join(SUCCESSES)}, got {success!r}")
        self.max_reward = known.max_reward
        self.text_rules = known.rules or f"The game {name} of gymnasium."
        self.values = values.split("/") if values else list(known.values)
        with self.isolation.run():
            self.game = make_game(name, settings)
        self.actions = self._action_names(tuple(names.split("/")) if names else known.names)

    def _action_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        space = self.game.action_space
        if type(space).__name__ != "Discrete":
            raise UserError(f"gymnasium:{self.name} has no numbered actions; they are {space}")
        if names and len(names) != space.n:
            raise UserError(
                f"gymnasium:{self.name} has {space.n} actions, and names= has {len(names)} names"
            )
        return names or tuple(str(action) for action in range(space.n))

    # ---------- instances

    def begin(self, seed: int) -> str:
        self.isolation.seed(seed)
        with self.isolation.run():
            observation, _ = self.game.reset(seed=seed)
            self.text = self._describe(observation)
        return self.text

    def _start(self, instance: tuple) -> None:
        _, seed, _ = instance
        self.begin(seed)
        self.game.unwrapped.np_random = self.rng
        self.isolation.seed(int(self.rng.integers(2**31)))
        self.limit_actions(self.game.spec.max_episode_steps)

    # ---------- the game

    def _move(self, index: int) -> Move:
        before = self.text
        action = int(self.game.action_space.start) + index
        with self.isolation.run():
            observation, reward, terminated, truncated, _ = self.game.step(action)
            self.text = self._describe(observation)
        won = {"reward": terminated and reward > 0, "end": terminated, "limit": truncated}
        return Move(
            reward,
            terminated=terminated or truncated,
            success=won[self.success],
            effective=self.text != before,
        )

    def plan(self, max_actions: int, turns_left: int) -> list[str]:
        """Return the best next actions, from `best_actions`.

        The list ends after an action with a random outcome, because the next state is unknown."""
        transitions = vars(self.game.unwrapped).get("P")
        if transitions is None:
            raise UserError(f"gymnasium:{self.name} has no reference player but random")
        best = best_actions(self.spec)
        state = int(self.game.unwrapped.s)
        names = []
        while len(names) < max_actions and not self.terminated:
            names.append(self.actions[best[state]])
            outcomes = transitions[state][best[state]]
            _, state, _, is_end = outcomes[0]
            if is_end or len(outcomes) > 1:
                break
        return names

    # ---------- texts

    def _describe(self, observation: Any) -> str:
        """Return the rendered text, then the numbers of the observation if they have names.

        Without rendered text, return the numbers even if they have no names."""
        lines = []
        if self.game.render_mode == "ansi":
            text = PLACE.sub(r"[\1]", self.game.render())
            rows = [row.rstrip() for row in COLOUR.sub("", text).split("\n")]
            lines = [row for row in rows if row and not LAST_ACTION.fullmatch(row)]
        if self.values or not lines:
            lines.append(self._named_numbers(observation))
        return "\n".join(lines)

    def _named_numbers(self, observation: Any) -> str:
        decode = getattr(self.game.unwrapped, "decode", None)
        if decode and len(self.values) > 1:  # `decode` splits one number into values, as in Taxi
            observation = list(decode(observation))
        numbers = flatten(observation)
        if len(numbers) > MAX_NUMBERS:
            problem = f"shows {len(numbers):,} numbers, more than {MAX_NUMBERS}"
            if not self.values:
                problem += ", and has no text renderer"
            raise UserError(f"gymnasium:{self.name} {problem}")
        texts = [f"{number:.3g}" for number in numbers]
        if not self.values:
            return f"Observation {', '.join(texts)}."
        if len(texts) != len(self.values):
            raise UserError(
                f"gymnasium:{self.name} shows {len(texts)} numbers, and values= has "
                f"{len(self.values)} names"
            )
        pairs = [f"{name} {text}" for name, text in zip(self.values, texts, strict=True)]
        return f"{', '.join(pairs)}."

    def observe(self) -> str:
        return self.text

    def rules(self) -> str:
        return f"{self.text_rules} Actions: {', '.join(self.actions)}."


# ---------- the package


def make_game(name: str, settings: str) -> Any:
    """Make an environment of gymnasium, and use its text renderer if it has one.

    Raises: UserError if gymnasium cannot make it.
    """
    arguments = parse_settings(settings)
    if has_text_renderer(name, settings):
        arguments["render_mode"] = "ansi"
    return _make(name, arguments)


@lru_cache
def has_text_renderer(name: str, settings: str) -> bool:
    """Return True if an environment can show its state as text.

    Raises: UserError if gymnasium cannot make it.
    """
    game = _make(name, parse_settings(settings))
    return "ansi" in game.metadata.get("render_modes", ())


def _make(name: str, arguments: dict[str, Any]) -> Any:
    """Call gymnasium.make. Raises: UserError if the call fails."""
    import gymnasium

    try:
        return gymnasium.make(name, disable_env_checker=True, **arguments)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise UserError(f"gymnasium cannot make {name!r}: {error}") from error


def flatten(observation: Any) -> list[float]:
    """Return all numbers in an observation.

    An observation is a number, an array, or a tuple or dict of observations."""
    if isinstance(observation, dict):
        observation = tuple(observation.values())
    if isinstance(observation, (tuple, list)):
        return [number for part in observation for number in flatten(part)]
    try:
        return np.ravel(observation).astype(float).tolist()
    except (TypeError, ValueError) as error:
        raise UserError(f"an observation must hold numbers, got {show(observation)}") from error


@lru_cache
def best_actions(spec: str) -> np.ndarray:
    """Find the best action in each state by value iteration over P, the table of transitions.

    Returns: (S,) the index of the best action in each of the S states.
    """
    table = make_env(spec).game.unwrapped.P
    num_states = len(table)
    num_actions = len(table[0])
    rewards = np.zeros((num_states, num_actions))
    following = np.zeros((num_states, num_actions, num_states))  # (S, A, next S) probabilities
    for state, actions in table.items():
        for action, outcomes in actions.items():
            for probability, next_state, reward, is_end in outcomes:
                rewards[state, action] += probability * reward
                if not is_end:
                    following[state, action, next_state] += probability
    values = np.zeros(num_states)  # (S,)
    change = 1.0
    while change > 1e-9:
        returns = rewards + GAMMA * following @ values  # (S, A)
        change = np.abs(returns.max(axis=1) - values).max()
        values = returns.max(axis=1)
    return (rewards + GAMMA * following @ values).argmax(axis=1)
