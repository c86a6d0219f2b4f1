# StarPO-S with PPO on the two-armed bandit. The agent acts once, and sees only the names of the two
# arms.
# Launch:  torchrun --standalone train.py config/bandit_ppo.py

env = "bandit:pair=phoenix"
estimator = "gae"
# a trajectory is one reply with one action
max_turns = 1
actions_per_turn = 1
actions_per_traj = 1
max_response_tokens = 500
