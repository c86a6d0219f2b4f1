# StarPO-S with GRPO on FrozenLake, 4x4, slippery: frozenlake_ppo.py without the critic.

env = "frozenlake:size=4,frozen_prob=0.8,success_rate=0.8"
estimator = "grpo"
