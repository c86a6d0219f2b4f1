# Extra settings for frozenlake_grpo.py and tiny.py: StarPO at a learning rate of 2e-3. Most
# such runs collapse within 15 iterations (studies/collapse/README.md). The ice is not slippery.
# Example:
#   python train.py config/frozenlake_grpo.py config/models/tiny.py config/recipes/tiny_collapse.py

env = "frozenlake:size=4,frozen_prob=0.9,success_rate=1.0"
learning_rate = 2e-3
num_groups = 4
group_size = 8
batch_size = 8  # four optimizer steps per iteration
filter_keep = 1.0  # StarPO has no filter
clip_high = 0.2  # clip_low is 0.2, too, because StarPO's clip range is symmetric
num_iterations = 60
eval_every = 5
eval_size = 128
