# Extra settings for any experiment: IcePop (arXiv 2510.18855). It drops a token if its probability
# in the trainer, divided by its probability in the engine, is below 0.5 or above 5.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/icepop.py

importance_floor = 0.5
importance_cap = 5.0
