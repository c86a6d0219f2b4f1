# StarPO-S with PPO on Sokoban, 6x6 rooms with one box. Nothing is random, but a wrong push may be
# final. A trajectory ends after 10 actions or 5 turns of up to 5 actions (the defaults).
# Launch:  torchrun --standalone train.py config/sokoban_ppo.py

env = "sokoban:size=6,boxes=1,search_depth=300"
estimator = "gae"
