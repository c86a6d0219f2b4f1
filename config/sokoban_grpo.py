# StarPO-S with GRPO on Sokoban, 6x6 rooms with one box: sokoban_ppo.py without the critic.
# Launch:  torchrun --standalone train.py config/sokoban_grpo.py
#
# 8 groups * 16 trajectories = 128 per iteration; 2 groups kept = 32 trajectories = one optimizer step

env = "sokoban:size=6,boxes=1,search_depth=300"
estimator = "grpo"
