# StarPO-S with GRPO on Sokoban, 6x6 rooms with one box: sokoban_ppo.py without the critic.

env = "sokoban:size=6,boxes=1,search_depth=300"
estimator = "grpo"
