# Extra settings for any experiment: DPPO-TV (arXiv 2602.04879). It drops tokens instead of
# clipping PPO's ratio. A token with a positive advantage is dropped if its probability in the
# trainer is more than 0.2 above its probability in the engine. A token with a negative advantage is
# dropped if its probability in the trainer is more than 0.2 below its probability in the engine.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/dppo_tv.py

tv_bound = 0.2
# In the paper, the ratio (probability in the trainer) / (probability in the engine) has no cap. So
# importance_cap is set too high to matter. The paper's code caps the ratio at 20.
importance_cap = 1e6
batch_size = 8  # four optimizer steps per iteration of frozenlake_grpo.py
