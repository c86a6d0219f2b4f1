# Extra settings for training the tiny model (config/models/tiny.py) on a text game. Run SFT
# before RL, because the base model has never seen the words of text games
# (studies/papers/README.md).
# Example:
#   python -m tools.sft config/quest_ppo.py config/models/tiny.py config/recipes/tiny_text.py

think = False  # as in arXiv 2510.01132
max_response_tokens = 32
max_context_tokens = 2048
max_turns = 8  # twice the length of the shortest solution in quest_ppo.py
actions_per_traj = 8
eval_size = 100
eval_every = 0
sft_lr = 3e-3
sft_muon_lr = 1e-2

num_iterations = 40
group_size = 8
filter_keep = 0.5
# The filter keeps 32 of an iteration's 64 trajectories. Two passes over these 32 trajectories, with
# 16 trajectories per optimizer step, make four optimizer steps.
batch_size = 16
num_epochs = 2
learning_rate = 3e-4
turn_lam = 0.9
