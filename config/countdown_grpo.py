# StarPO-S with GRPO on Countdown: countdown_ppo.py without the critic.

env = "countdown"
estimator = "grpo"
max_turns = actions_per_turn = actions_per_traj = 1  # a trajectory is one reply with one expression
max_response_tokens = 1000  # a search takes room
