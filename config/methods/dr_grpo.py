# Overlay for frozenlake_grpo.py: Dr. GRPO (arXiv 2503.20783). It divides neither advantages
# by the standard deviation of the group nor losses by the length of the trajectory.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/dr_grpo.py

estimator = "dr_grpo"
aggregation = "constant"
