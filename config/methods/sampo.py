# Extra settings for frozenlake_grpo.py: SAMPO (arXiv 2602.21534). It combines three methods: GSPO
# with one ratio for each turn, GiGPO, and a filter that drops a group if all its scores are equal.
# --sampling_rounds=3 samples new groups in place of the dropped groups.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/sampo.py

estimator = "grpo"
state_weight = 1.0
turn_gamma = 0.95
sequence_ratio = True
segment = "turn"  # as in the authors' code
# In bfloat16, engine and trainer round differently. If the engine gave the old log-probs, this
# difference alone could take the ratio out of the narrow clip range. So the trainer computes the
# old log-probs.
recompute_old_logprobs = True
clip_low = 3e-3  # the clip range of the authors' scripts for SAMPO
clip_high = 4e-3
aggregation = "seq_mean_token_mean"
filter_strategy = "top_p"
filter_keep = 1.0
