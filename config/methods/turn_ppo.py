# Overlay for sokoban_ppo.py: Turn-PPO (arXiv 2512.17008). A turn is one action, with one value and
# one step of GAE.
# Example:  torchrun --standalone train.py config/sokoban_ppo.py config/methods/turn_ppo.py

estimator = "turn_ppo"
turn_gamma = 0.99
turn_lam = 0.9
