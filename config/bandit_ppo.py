# StarPO-S with PPO on the two-armed bandit: one turn, one action, and the arms must be told apart by their names.

env = "bandit:pair=phoenix"
estimator = "gae"
max_turns = actions_per_turn = actions_per_traj = 1  # a trajectory is one reply with one action
max_response_tokens = 500
