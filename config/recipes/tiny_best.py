# Extra settings for tiny.py, chosen on held-out prompts of slippery FrozenLake. The rows PPO and
# GRPO in the FrozenLake tables of studies/imitation/table.md use these settings
# (studies/imitation/README.md).
# Example:
#   python train.py config/frozenlake_ppo.py config/models/tiny.py config/recipes/tiny_best.py

num_iterations = 100
num_groups = 32
group_size = 4
filter_keep = 1.0  # no filter: one trial on slippery FrozenLake had higher success without it
learning_rate = 3e-4
final_lr = 0.1  # the learning rates fall towards a tenth of their first values
