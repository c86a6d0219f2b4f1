# Overlay for any experiment: dynamic sampling (DAPO, arXiv 2503.14476). Up to three rounds sample
# groups until num_groups groups have scores that differ.
# Example:  python train.py config/frozenlake_grpo.py config/methods/dynamic_sampling.py

sampling_rounds = 3
filter_strategy = "top_p"
filter_keep = 1.0
