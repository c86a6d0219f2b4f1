# Extra settings for frozenlake_ppo.py: on average two groups of FrozenLake for each group of
# Sokoban. Evaluation uses both environments.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/envs/mixture.py

_lake = "frozenlake:size=4,frozen_prob=0.8,success_rate=0.8"
_sokoban = "sokoban:size=6,boxes=1,search_depth=300"
env = f"2*{_lake} + {_sokoban}"
# The scores of the two environments differ in scale. So after the filter, the scores of each
# environment are normalised separately, to mean 0 and standard deviation 1.
reward_norm = "mean_std"
reward_norm_over = "env"
