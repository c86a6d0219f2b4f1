# Extra settings for any experiment: dynamic sampling (DAPO, arXiv 2503.14476). It samples groups
# until num_groups of them have variance in their scores, but for at most three rounds.
# Example:  python train.py config/frozenlake_grpo.py config/methods/dynamic_sampling.py

sampling_rounds = 3
filter_strategy = "top_p"
filter_keep = 1.0
