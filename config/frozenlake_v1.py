# Overlay: FrozenLake with the slip of the paper (arXiv 2504.20073), the one of FrozenLake-v1.
# Launch:  torchrun --standalone train.py config/frozenlake_ppo.py config/frozenlake_v1.py --out_dir=out/frozenlake_v1
# The intended direction has probability 1/3, each of the two sides 1/3 as well.

env = "frozenlake:size=4,frozen_prob=0.8,success_rate=0.3333333333333333"
