# Extra settings for frozenlake_grpo.py: REINFORCE++ (arXiv 2501.03262). The advantage of a token is
# the discounted sum of rewards from this token on. The advantages of an iteration are whitened
# (mean 0, standard deviation 1). REINFORCE++ has no critic and no group baseline. KL is part of the
# reward.
# --estimator=reinforce_plus_plus_baseline subtracts the group's mean score from each score, and
# whitens the differences.
# Example:  python train.py config/frozenlake_grpo.py config/methods/reinforce_plus_plus.py

estimator = "reinforce_plus_plus"
kl_coef = 0.001
kl_in = "reward"
kl_estimator = "k1"
