# StarPO-S with PPO on Household, with all six types of tasks.
# Launch:  torchrun --standalone train.py config/household_ppo.py

env = "household:task=all,show=none"
estimator = "gae"
max_turns = 24  # as in arXiv 2510.01132
actions_per_turn = 1
actions_per_traj = 24
max_response_tokens = 150
max_context_tokens = 6000
