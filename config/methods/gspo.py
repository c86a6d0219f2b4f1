# Extra settings for any experiment: GSPO (arXiv 2507.18071). The ratio of a trajectory is the
# geometric mean of the ratios of its tokens. --segment=turn takes the mean over a turn instead.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/gspo.py

sequence_ratio = True
recompute_old_logprobs = True  # else bfloat16 rounding alone could cause clipping
clip_low = 3e-4  # the paper's clip range
clip_high = 4e-4
aggregation = "seq_mean_token_mean"
batch_size = 8  # several optimizer steps per iteration: GSPO acts from the second step on
