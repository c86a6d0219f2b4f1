# Extra settings for any experiment: StarPO without the stabilizers of StarPO-S. StarPO has a
# symmetric clip range and a KL term, but no filter. Without the filter, frozenlake_ppo.py trains on
# all 128 trajectories of an iteration, in four optimizer steps.
# The paper (arXiv 2504.20073, appendix B) puts the k1 estimate of KL in the loss. In a loss, k1 has
# an expected gradient of zero. So this file keeps the default estimate, k3 (see `kl_penalty`
# in starpo.py).
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/starpo_vanilla.py

filter_keep = 1.0
clip_high = 0.2
kl_coef = 0.001
