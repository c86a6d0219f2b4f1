# Extra settings for sokoban_ppo.py: Turn-PPO (arXiv 2512.17008). GAE treats a turn as one action
# with one value.
# Example:  torchrun --standalone train.py config/sokoban_ppo.py config/methods/turn_ppo.py

estimator = "turn_ppo"
turn_gamma = 0.99
turn_lam = 0.9
