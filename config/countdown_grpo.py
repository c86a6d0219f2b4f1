# StarPO-S with GRPO on Countdown: countdown_ppo.py without the critic.
# Launch:  torchrun --standalone train.py config/countdown_grpo.py

env = "countdown"
estimator = "grpo"
max_turns = 1  # one reply with one expression
actions_per_turn = 1
actions_per_traj = 1
max_response_tokens = 1000  # room to try several expressions
