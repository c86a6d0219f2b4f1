# StarPO-S with GRPO on Sokoban: sokoban_ppo.py without the critic.
# Launch:  torchrun --standalone train.py config/sokoban_grpo.py

env = "sokoban:size=6,boxes=1,search_depth=300"
estimator = "grpo"
