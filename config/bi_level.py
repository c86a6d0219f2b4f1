# Overlay behind sokoban_ppo.py: bi-level GAE, over turns with a discount, inside each without, as in RAGEN's code.

estimator = "bi_level_gae"
turn_gamma = 0.95
