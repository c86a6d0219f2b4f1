# StarPO-S with GRPO on a game of GEM: guess a number from 1 to 15 in four turns.
# Install requirements/hubs.txt first (docs/hubs.md).
# Launch:  torchrun --standalone train.py config/guess_number_grpo.py

env = "gem:game:GuessTheNumber-v0-easy,settings=max_number=15"
estimator = "grpo"
reward_density = "sparse"  # "native" would also reward a last guess that is only near the number
max_turns = 4
actions_per_turn = 1
actions_per_traj = 4
