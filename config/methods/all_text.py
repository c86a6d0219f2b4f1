# Extra settings for frozenlake_ppo.py: training on all text after the system message, as the
# StarPO paper's first code does.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/all_text.py

mask_observations = False
