# StarPO-S with PPO on the two-armed bandit. The agent sees only the names of the arms.
# Launch:  torchrun --standalone train.py config/bandit_ppo.py

env = "bandit:pair=phoenix"
estimator = "gae"
max_turns = 1  # one reply with one action
actions_per_turn = 1
actions_per_traj = 1
max_response_tokens = 500
