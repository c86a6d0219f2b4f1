# Extra settings for sokoban_ppo.py: LargerSokoban, 8x8 rooms with two boxes.
# Example:  torchrun --standalone train.py config/sokoban_ppo.py config/envs/sokoban_large.py

env = "sokoban:size=8,boxes=2,search_depth=10"
