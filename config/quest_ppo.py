# StarPO-S with PPO on Quest, in the first setting of arXiv 2510.01132: w=2 rooms, o=3 objects, and
# a shortest solution of q=4 commands.
# Launch:  torchrun --standalone train.py config/quest_ppo.py

env = "quest:w=2,o=3,q=4,goal=full,show=none"
estimator = "gae"
max_turns = 12  # three times the length of the shortest solution
actions_per_turn = 1
actions_per_traj = 12
max_response_tokens = 200  # a low limit, because 12 turns share the context
