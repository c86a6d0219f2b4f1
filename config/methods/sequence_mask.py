# Extra settings for any experiment: the sequence mask of arXiv 2512.02556. The ratio of a token is
# its probability in the trainer divided by its probability in the engine. The mask drops a
# trajectory if the mean advantage of its tokens is below 0 and the geometric mean of their ratios
# is below 0.99. In the first optimizer step of an iteration, engine and trainer have the same
# weights. So the mask then has an effect only if engine and trainer round differently.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/sequence_mask.py

sequence_mask = 0.99  # our choice
batch_size = 8
