# Overlay for sokoban_ppo.py: bi-level GAE as in RAGEN's code. It discounts turns, and it does not
# discount the tokens of a turn.
# Example:  torchrun --standalone train.py config/sokoban_ppo.py config/methods/bi_level.py

estimator = "bi_level_gae"
turn_gamma = 0.95
