# StarPO-S with PPO on Countdown: make the target from three or four numbers with one expression.
# Launch:  torchrun --standalone train.py config/countdown_ppo.py

env = "countdown"
estimator = "gae"
max_turns = 1  # one reply with one expression
actions_per_turn = 1
actions_per_traj = 1
max_response_tokens = 1000  # room for a thought that tries several expressions
