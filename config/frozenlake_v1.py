# Overlay behind frozenlake_ppo.py: the slip of the paper and of FrozenLake-v1, 1/3 straight on and 1/3 to each side.

env = "frozenlake:size=4,frozen_prob=0.8,success_rate=0.3333333333333333"
