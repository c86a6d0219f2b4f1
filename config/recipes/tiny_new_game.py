# Extra settings for a game whose words the tiny base model has never seen. Give this file after
# tiny.py, because it overrides settings of tiny.py. Run SFT first. Then start RL from the SFT model
# with --model=DIR (studies/imitation/new_games.md).
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
batch_size = 64  # four optimizer steps per iteration
learning_rate = 2e-4
