# Overlay: Dr. GRPO (arXiv 2503.20783), no division by the group's std nor by the length of a trajectory.
# Launch:  torchrun --standalone train.py config/frozenlake_grpo.py config/dr_grpo.py --out_dir=out/dr_grpo

estimator = "dr_grpo"
aggregation = "constant"
