# Extra settings for any experiment: IcePop (arXiv 2510.18855). The ratio of a token is its
# probability in the trainer divided by its probability in the engine. IcePop drops a token from the
# loss if this ratio is below 0.5 or above 5.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/icepop.py

importance_floor = 0.5
importance_cap = 5.0
