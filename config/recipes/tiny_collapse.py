# Overlay for frozenlake_grpo.py and tiny.py: StarPO on ice that is not slippery, at a learning rate
# at which it should collapse within a few iterations (studies/collapse/README.md). A run takes two
# CPU-minutes.
# Example:
#   python train.py config/frozenlake_grpo.py config/models/tiny.py config/recipes/tiny_collapse.py

env = "frozenlake:size=4,frozen_prob=0.9,success_rate=1.0"  # as frozenlake_det.py
learning_rate = 2e-3
num_groups = 4
group_size = 8
batch_size = 8  # four optimizer steps an iteration
filter_keep = 1.0  # StarPO, not StarPO-S: no filter, and a symmetric clip
clip_high = 0.2
num_iterations = 60
eval_every = 5
eval_size = 128
