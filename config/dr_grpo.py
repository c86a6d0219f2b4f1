# Overlay behind frozenlake_grpo.py: Dr. GRPO (arXiv 2503.20783), no division by the group's std or the length.

estimator = "dr_grpo"
aggregation = "constant"
