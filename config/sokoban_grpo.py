# StarPO-S with GRPO on Sokoban, 6x6 rooms with one box. This is sokoban_ppo.py without the critic.
# Launch:  torchrun --standalone train.py config/sokoban_grpo.py

env = "sokoban:size=6,boxes=1,search_depth=300"
estimator = "grpo"
