# Overlay behind frozenlake_grpo.py: REINFORCE++ (arXiv 2501.03262), no critic and no group: returns whitened over the
# batch, KL in the reward. --estimator=reinforce_plus_plus_baseline takes the mean of the group off first.

estimator = "reinforce_plus_plus"
kl_coef = 0.001
kl_in = "reward"
kl_estimator = "k1"
