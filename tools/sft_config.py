"""The settings of supervised learning (tools/sft.py)."""

from configurator import Config, Count, Fraction, Large, Natural, NotNegative

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SftConfig(Config):
    """The settings of tools.sft: all settings of Config, and the settings below. The names of the
    settings below begin with SFT_PREFIX ("sft_"). No name in Config does."""

    # -- supervised learning
    sft_steps: Natural = 0  # optimizer steps
    sft_batch_size: Large = 16  # demonstrations per step
    sft_lr: NotNegative = 1e-5  # AdamW
    # learning rate of Muon, which trains the matrices of the layers; 0 = AdamW for all parameters
    sft_muon_lr: NotNegative = 0.0
    # The player of the demonstrations. shortest takes the actions of `Env.demonstrate` (often a
    # shortest path), usually one action in a turn. planner plays optimally under the limits on
    # turns and actions. crowd stands for the good and bad players whose games pretrained the tiny
    # model
    sft_player: Literal["shortest", "planner", "crowd"] = "shortest"
    sft_actions: Count = 3  # maximum number of actions in a turn of a demonstration; not for crowd
    # number of different demonstrations, which repeat in order; 0 = new ones every step
    sft_demos: Natural = 0
    sft_file: str = ""  # file of demonstrations, which repeat in order; '' = generate them
    sft_lost: bool = True  # True: also imitate the games of sft_file that were not won
    sft_eval_games: bool = False  # False: an error if sft_file has games on evaluation prompts
    sft_noise: Fraction = 0.0  # fraction of turns whose actions are random; not for crowd
    # fraction of demonstrations to which sft_noise does not apply; these come first; not for crowd
    sft_clean: Fraction = 0.0
    sft_planners: Fraction = 0.15  # fraction of the crowd's games that the planner plays
