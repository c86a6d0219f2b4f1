# Extra settings for tiny.py, chosen on held-out prompts of slippery FrozenLake. In the FrozenLake
# tables of studies/imitation/table.md, the runs of the rows PPO and GRPO have these settings
# (studies/imitation/README.md).
# Example:
#   python train.py config/frozenlake_ppo.py config/models/tiny.py config/recipes/tiny_best.py

num_iterations = 100
num_groups = 32
group_size = 4
filter_keep = 1.0  # no filter: one trial on slippery FrozenLake had higher success without it
learning_rate = 3e-4
final_lr = 0.1  # the learning rates fall to a tenth
