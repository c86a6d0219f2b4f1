# StarPO-S with PPO on Household, all six task types; shortest solutions take 3 to 11 commands.

env = "household:task=all,show=none"
estimator = "gae"
max_turns = actions_per_traj = 24  # as in arXiv 2510.01132
actions_per_turn = 1
max_response_tokens = 150  # a thought and a command
max_context_tokens = 6000
