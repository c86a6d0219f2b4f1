# StarPO-S with GRPO on the two-armed bandit: bandit_ppo.py without the critic.
# Launch:  torchrun --standalone train.py config/bandit_grpo.py

env = "bandit:pair=phoenix"
estimator = "grpo"
max_turns = 1  # one reply with one action
actions_per_turn = 1
actions_per_traj = 1
max_response_tokens = 500
