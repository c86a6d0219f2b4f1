# StarPO-S with PPO on Household, all six task types; shortest solutions take 3 to 11 commands.
# Launch:  torchrun --standalone train.py config/household_ppo.py
# 24 commands as in arXiv 2510.01132, one a turn

env = "household:task=all,show=none"
estimator = "gae"
max_turns = actions_per_traj = 24
actions_per_turn = 1
max_response_tokens = 150  # a thought and a command
max_context_tokens = 6000
