# StarPO-S with GRPO on slippery 4x4 FrozenLake: frozenlake_ppo.py without the critic.
# Launch:  torchrun --standalone train.py config/frozenlake_grpo.py

env = "frozenlake:size=4,frozen_prob=0.8,success_rate=0.8"
estimator = "grpo"
