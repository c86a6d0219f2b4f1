# Overlay: RLOO (arXiv 2402.14740), the mean score of the other members of the group is the baseline.
# Launch:  torchrun --standalone train.py config/frozenlake_grpo.py config/rloo.py --out_dir=out/rloo
# --turn_level=True compares the return-to-go of every turn, so that rewards before the last turn matter

estimator = "rloo"
