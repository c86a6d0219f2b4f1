# StarPO-S with PPO on Sokoban, 6x6 rooms with one box: no randomness, but a wrong push cannot be undone.
# 5 turns * 5 actions would be 25, but a trajectory ends after 10 actions (the default)

env = "sokoban:size=6,boxes=1,search_depth=300"
estimator = "gae"
