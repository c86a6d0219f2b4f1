# StarPO-S with GRPO on the two-armed bandit: bandit_ppo.py without the critic.

env = "bandit:pair=phoenix"
estimator = "grpo"
max_turns = actions_per_turn = actions_per_traj = 1  # a trajectory is one reply with one action
max_response_tokens = 500
