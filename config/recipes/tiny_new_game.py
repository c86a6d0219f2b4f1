# Overlay for tiny.py: a game whose words the tiny base has never seen. SFT comes first, with a high
# learning rate, and RL continues from the SFT model. The policy writes no thoughts.
# studies/imitation/new_games.md has results.
# Example:
#   python train.py config/spell_grpo.py config/models/tiny.py config/recipes/tiny_new_game.py \
#       --model=DIR

think = False
max_response_tokens = 48
sft_lr = 3e-3
sft_muon_lr = 1e-2

num_iterations = 80
num_groups = 32
group_size = 8
filter_keep = 1.0  # no filter
batch_size = 64  # of 256 trajectories: four optimizer steps an iteration
learning_rate = 2e-4
