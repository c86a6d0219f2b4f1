# Extra settings for frozenlake_grpo.py: GiGPO (arXiv 2505.10978). It also compares the turns of a
# group that start in the same state. The filter of StarPO-S stays.
# --filter_keep=1.0 turns the filter off, as in the paper.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/gigpo.py

estimator = "grpo"
state_weight = 1.0
turn_gamma = 0.95
