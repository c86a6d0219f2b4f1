# StarPO-S with PPO on Countdown. The agent gives one expression that makes the target from three or
# four numbers.
# Launch:  torchrun --standalone train.py config/countdown_ppo.py

env = "countdown"
estimator = "gae"
# a trajectory is one reply with one expression
max_turns = 1
actions_per_turn = 1
actions_per_traj = 1
max_response_tokens = 1000  # room to try several expressions
