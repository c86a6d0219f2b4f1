# Extra settings for frozenlake_ppo.py: 50 iterations on 3x3 lakes, then 4x4 lakes. Evaluation uses
# the 4x4 lakes.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/envs/curriculum.py

_small = "frozenlake:size=3,frozen_prob=0.8,success_rate=0.8"
_large = "frozenlake:size=4,frozen_prob=0.8,success_rate=0.8"
env = f"{_small} @50 > {_large}"
