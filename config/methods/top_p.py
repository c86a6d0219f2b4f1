# Extra settings for any experiment: the filter of RAGEN-2. It ranks groups by the standard
# deviation of their scores. It keeps the first groups whose standard deviations add up to 90 % of
# the total.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/top_p.py

filter_strategy = "top_p"
filter_keep = 0.9
