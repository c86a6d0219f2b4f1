# Overlay for tiny.py: the settings of PPO and GRPO in studies/imitation/table.md.
# They were chosen on slippery FrozenLake, on the prompts of --eval_split=heldout
# (studies/imitation/README.md).
# Example:
#   python train.py config/frozenlake_ppo.py config/models/tiny.py config/recipes/tiny_best.py

num_iterations = 100
num_groups = 32  # more and smaller groups, for more boards
group_size = 4
filter_keep = 1.0  # no filter: on slippery FrozenLake it was better to keep all groups
learning_rate = 3e-4
final_lr = 0.1  # the learning rates fall to a tenth
