"""A template for an environment. Copy this file, and change the parts that the comments describe.

python -m tools.check_env examples/my_env.py:Doors
python -m tools.play examples/my_env.py:Doors --seed=3

The tiny model must first learn the words of a new game from demonstrations (SFT, 1 CPU-minute).
RL then takes minutes. The commands of SFT and RL:

python -m tools.sft config/frozenlake_grpo.py config/models/tiny.py \\
    config/recipes/tiny_new_game.py --env=examples/my_env.py:Doors \\
    --sft_steps=50 --out_dir=out/doors_sft
python train.py config/frozenlake_grpo.py config/models/tiny.py \\
    config/recipes/tiny_new_game.py --env=examples/my_env.py:Doors \\
    --model=out/doors_sft/model --num_iterations=20 --out_dir=out/doors
"""

from envs import Env, Move


class Doors(Env):
    """One of eight doors has a prize behind it. A wrong door says on which side the prize is."""

    actions = tuple(f"door {number}" for number in range(1, 9))  # the names of the actions
    # An instance is one start of the game. This game has only eight instances, too few to keep
    # some of them for evaluation. So `repeats` lets training and evaluation share instances. If
    # your game has 1,024 instances or more, leave `repeats` out. Then 512 instances are kept for
    # evaluation, and training draws from the rest.
    repeats = True

    def __init__(self, *, reward: float = 1.0, **common):  # an option: --env=...:Doors,reward=2
        super().__init__(**common)
        self.max_reward = reward  # the total reward of a won game

    def draw(self, rng):
        """Draw an instance: the name of the game, then all values that determine the start."""
        return ("doors", int(rng.integers(len(self.actions))))

    def _start(self, instance):
        """Begin the game of an instance. Noise during the game must come from self.rng."""
        self.prize = instance[1]
        self.lowest = 0  # lowest <= prize <= highest
        self.highest = len(self.actions) - 1

    def _move(self, index):
        """Run actions[index]. Returns: reward, terminated, success, effective (state changed?)."""
        before = (self.lowest, self.highest)
        if index < self.prize:
            self.lowest = max(self.lowest, index + 1)
        elif index > self.prize:
            self.highest = min(self.highest, index - 1)
        found = index == self.prize
        changed = found or (self.lowest, self.highest) != before
        return Move(self.max_reward if found else 0.0, found, found, changed)

    def observe(self):
        """The observation that the policy gets in each turn."""
        return f"The prize is behind one of {self.actions[self.lowest]} to {self.highest + 1}."

    def rules(self):
        """The description of the game in the system message, the same for all instances."""
        return (
            f"Find the prize. A wrong door says which doors are left. Reward {self.max_reward:g}."
        )

    # Two optional methods. `statements` is needed to check the policy's thoughts. Demonstrations
    # and the reference players "optimal" and "greedy" use `plan`.

    def statements(self):
        """True sentences about the present state."""
        return [f"Doors left {self.highest - self.lowest + 1}."]

    def plan(self, max_actions, turns_left):
        """The best next actions. Here the list holds one action: the middle remaining door."""
        return [self.actions[(self.lowest + self.highest) // 2]]
