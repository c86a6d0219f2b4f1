# Overlay: bi-level GAE, over turns with a discount and inside each turn without one, as in RAGEN's code.
# Launch:  torchrun --standalone train.py config/sokoban_ppo.py config/bi_level.py --out_dir=out/bi_level

estimator = "bi_level_gae"
turn_gamma = 0.95
