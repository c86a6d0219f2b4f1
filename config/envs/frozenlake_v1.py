# Extra settings for frozenlake_ppo.py: the slip of the StarPO paper and of FrozenLake-v1. A move
# goes straight with probability 1/3, and to each side with probability 1/3.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/envs/frozenlake_v1.py

env = "frozenlake:size=4,frozen_prob=0.8,success_rate=0.3333333333333333"
