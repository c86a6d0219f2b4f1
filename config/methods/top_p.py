# Extra settings for any experiment: the filter of RAGEN-2. It ranks groups by the standard
# deviation of their scores, largest first. The filter keeps groups from the top until their
# standard deviations sum to at least 90 % of the sum over all groups.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/top_p.py

filter_strategy = "top_p"
filter_keep = 0.9
