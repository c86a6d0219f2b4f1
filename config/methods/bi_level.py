# Extra settings for sokoban_ppo.py: bi-level GAE as in RAGEN's code. Rewards are discounted per
# turn, not per token.
# Example:  torchrun --standalone train.py config/sokoban_ppo.py config/methods/bi_level.py

estimator = "bi_level_gae"
turn_gamma = 0.95
