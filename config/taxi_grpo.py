# StarPO-S with GRPO on Taxi of gymnasium: fetch a passenger and drive to the destination. A turn
# has up to five moves. Install requirements/hubs.txt first, see docs/hubs.md.
# Launch:  torchrun --standalone train.py config/taxi_grpo.py

env = "gymnasium:Taxi-v4"
estimator = "grpo"
max_turns = 5
actions_per_turn = 5
actions_per_traj = 25
sft_player = "planner"  # names as many moves as it may, so a game has about three turns
sft_actions = 5
