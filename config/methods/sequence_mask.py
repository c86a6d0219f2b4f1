# Extra settings for any experiment: the sequence mask of arXiv 2512.02556. It drops a trajectory
# if its mean advantage is negative and the geometric mean of its tokens' ratios is below 0.99. The
# ratio of a token is its probability in the trainer divided by its probability in the engine. In
# the first optimizer step of an iteration, the mask has an effect only if engine and trainer round
# differently.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/sequence_mask.py

sequence_mask = 0.99  # our choice
batch_size = 8
