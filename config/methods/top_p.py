# Overlay for any experiment: the filter of RAGEN-2. It ranks groups by their score std and keeps
# the first groups whose stds make up 90% of the sum of all stds.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/top_p.py

filter_strategy = "top_p"
filter_keep = 0.9
