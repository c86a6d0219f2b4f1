# Extra settings for frozenlake_grpo.py: RLOO (arXiv 2402.14740). The baseline of a trajectory is
# the mean score of the other trajectories in its group.
# --turn_level=True compares the returns-to-go of turns instead of the scores of trajectories.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/rloo.py

estimator = "rloo"
