# Extra settings for any experiment: GSPO (arXiv 2507.18071). The ratio of a trajectory is the
# geometric mean of the ratios of its tokens. --segment=turn takes the mean over a turn instead.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/gspo.py

sequence_ratio = True
# In bfloat16, engine and trainer round differently. If the engine gave the old log-probs, this
# difference alone could take the ratio out of the narrow clip range. So the trainer computes the
# old log-probs.
recompute_old_logprobs = True
clip_low = 3e-4  # the paper's clip range
clip_high = 4e-4
aggregation = "seq_mean_token_mean"
# In the first optimizer step of an iteration, all ratios are nearly 1. So GSPO's ratio usually has
# an effect only from the second step on. With batch_size 8, an iteration of frozenlake_grpo.py has
# four steps.
batch_size = 8
