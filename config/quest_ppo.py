# StarPO-S with PPO on Quest, two rooms, three objects, four commands at least: the first setting of arXiv 2510.01132.

env = "quest:w=2,o=3,q=4,goal=full,show=none"
estimator = "gae"
max_turns = actions_per_traj = 12  # three times the shortest solution
actions_per_turn = 1
max_response_tokens = 200  # a thought and a command; 12 turns share the context
