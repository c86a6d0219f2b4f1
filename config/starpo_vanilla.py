# Overlay behind any experiment: StarPO before its stabilizers (StarPO-S is the default): all 128 trajectories are kept,
# 4 optimizer steps of 32; symmetric clip; KL against the start. The paper (arXiv 2504.20073, appendix B) puts the k1
# estimate of the KL into the loss, where its expected gradient is zero; we use k3.

filter_keep = 1.0
clip_high = 0.2
kl_coef = 0.001
