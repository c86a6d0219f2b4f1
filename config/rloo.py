# Overlay behind frozenlake_grpo.py: RLOO (arXiv 2402.14740), the baseline is the mean of the others in the group.

estimator = "rloo"  # --turn_level=True compares returns-to-go of turns, so that rewards before the last turn matter
