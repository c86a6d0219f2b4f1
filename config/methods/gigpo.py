# Extra settings for frozenlake_grpo.py: GiGPO (arXiv 2505.10978). GRPO compares the trajectories of
# a group. If turns of these trajectories start in the same state, GiGPO also compares these turns.
# The filter of StarPO-S (filter_keep=0.25) stays on. --filter_keep=1.0 turns the filter off, as in
# the GiGPO paper.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/gigpo.py

estimator = "grpo"
state_weight = 1.0
turn_gamma = 0.95
