# Overlay for frozenlake_grpo.py: GiGPO (arXiv 2505.10978). It adds a comparison between the turns
# of a group that start in the same state.
# The filter of StarPO-S stays; --filter_keep=1.0 turns it off, as in the paper.
# --estimator=dr_grpo gives the form that does not divide by standard deviations.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/gigpo.py

estimator = "grpo"
state_weight = 1.0
turn_gamma = 0.95
