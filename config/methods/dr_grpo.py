# Extra settings for frozenlake_grpo.py: Dr. GRPO (arXiv 2503.20783). Advantages are not divided by
# the standard deviation of the group, and losses are not divided by the length of the trajectory.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/dr_grpo.py

estimator = "dr_grpo"
aggregation = "constant"
