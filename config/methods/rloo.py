# Extra settings for frozenlake_grpo.py: RLOO (arXiv 2402.14740). The baseline of a trajectory is
# the mean score of the other trajectories in its group.
# The return-to-go of a turn is the discounted sum of rewards from this turn on. With
# --turn_level=True, the return-to-go of a turn takes the place of the score. The baseline of
# turn k is then the mean return-to-go of turn k in the other trajectories of the group.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/rloo.py

estimator = "rloo"
