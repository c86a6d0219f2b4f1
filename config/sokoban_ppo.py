# StarPO-S with PPO on Sokoban: 6x6 rooms with one box.
# Launch:  torchrun --standalone train.py config/sokoban_ppo.py

env = "sokoban:size=6,boxes=1,search_depth=300"
estimator = "gae"
