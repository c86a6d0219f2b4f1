# StarPO-S with PPO on Quest: the first setting of arXiv 2510.01132, with two rooms (w) and three
# objects (o). The shortest solution has four commands (q).
# Launch:  torchrun --standalone train.py config/quest_ppo.py

env = "quest:w=2,o=3,q=4,goal=full,show=none"
estimator = "gae"
max_turns = 12  # three times the shortest solution
actions_per_turn = 1
actions_per_traj = 12
max_response_tokens = 200  # short: 12 turns share the context
