# StarPO-S with PPO on Countdown: one turn, one expression that makes the target of three or four numbers.

env = "countdown"
estimator = "gae"
max_turns = actions_per_turn = actions_per_traj = 1  # a trajectory is one reply with one expression
max_response_tokens = 1000  # a search takes room
