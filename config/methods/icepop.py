# Extra settings for any experiment: IcePop (arXiv 2510.18855). It drops tokens whose probability in
# the trainer is less than half or more than five times the probability in the engine.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/icepop.py

importance_floor = 0.5
importance_cap = 5.0
