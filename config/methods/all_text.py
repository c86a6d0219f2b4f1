# Extra settings for frozenlake_ppo.py: training on all text after the system message, as the code
# of the StarPO paper does.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/all_text.py

mask_observations = False
