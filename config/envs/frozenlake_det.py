# Extra settings for frozenlake_ppo.py: no slip and fewer holes, as in the main table of RAGEN-2.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/envs/frozenlake_det.py

env = "frozenlake:size=4,frozen_prob=0.9,success_rate=1.0"
