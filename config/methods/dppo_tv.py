# Extra settings for any experiment: DPPO-TV (arXiv 2602.04879). Instead of clipping ratios, it
# drops tokens whose probability moved by more than 0.2 in the direction of the advantage.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/dppo_tv.py

tv_bound = 0.2
importance_cap = 1e6  # truncates no ratio, as in the paper; the paper's code truncates at 20
batch_size = 8  # four optimizer steps per iteration of frozenlake_grpo.py
