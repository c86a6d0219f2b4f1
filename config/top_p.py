# Overlay behind any experiment: RAGEN-2's filter, the groups that hold 90 % of the in-group reward std of the batch.

filter_strategy = "top_p"
filter_keep = 0.9
