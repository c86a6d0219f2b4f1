# Overlay for any experiment: GSPO (arXiv 2507.18071). The ratio of a trajectory is the geometric
# mean of the ratios of its tokens. --segment=turn takes the mean over a turn instead. The clip
# range is the paper's. GSPO needs several optimizer steps per iteration: with the 32 kept
# trajectories of frozenlake_grpo.py, a batch_size of 8 makes four.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/gspo.py

sequence_ratio = True
recompute_old_logprobs = True  # else bfloat16 rounding could exceed the clip range
clip_low = 3e-4
clip_high = 4e-4
aggregation = "seq_mean_token_mean"
batch_size = 8
