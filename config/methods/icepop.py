# Overlay for any experiment: IcePop (arXiv 2510.18855). Tokens whose probability in the trainer is
# less than half or more than five times that in the engine are dropped. Without this overlay, their
# weight is only bounded from above (TIS), by 2; here that bound is 5.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/icepop.py

importance_floor = 0.5
importance_cap = 5.0
