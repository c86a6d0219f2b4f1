# StarPO-S with GRPO on a guessing game: find a number from 1 to 15 in four turns of one guess each.
# The game needs gymnasium: pip install gymnasium==1.4.0
# Launch:  torchrun --standalone train.py config/guess_grpo.py

env = "worlds/guess.py:Guess,largest=15"
estimator = "grpo"
num_groups = 32  # all games of a group have the same hidden number
group_size = 8
filter_keep = 0.5
max_turns = 4
actions_per_turn = 1
actions_per_traj = 4
