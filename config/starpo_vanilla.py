# Overlay: StarPO before its stabilizers (StarPO-S is the default): no filter, symmetric clip, KL against the start.
# Launch:  torchrun --standalone train.py config/frozenlake_ppo.py config/starpo_vanilla.py --out_dir=out/vanilla
# 8 groups * 16 trajectories = 128 trajectories, all kept = 4 optimizer steps of 32 per iteration
# The paper (arXiv 2504.20073, appendix B) puts the k1 estimate of the KL into the loss, where its expected gradient is
# zero; we use k3 (Schulman, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html).

filter_keep = 1.0
clip_high = 0.2
kl_coef = 0.001
