# Overlay for any experiment: the filter of RAGEN-2. It keeps the fewest groups that hold 90% of the
# sum of the in-group standard deviations of the batch.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/top_p.py

filter_strategy = "top_p"
filter_keep = 0.9
