# Overlay for any experiment: StarPO without the stabilizers of StarPO-S, which are the default. It
# keeps all 128 trajectories and makes 4 optimizer steps on 32 each. Its clip range is symmetric. It
# also has a KL term against the starting model. The paper (arXiv 2504.20073, appendix B) puts the
# k1 estimate of the KL into the loss. There k1 has an expected gradient of zero, so this file uses
# k3.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/starpo_vanilla.py

filter_keep = 1.0
clip_high = 0.2
kl_coef = 0.001
