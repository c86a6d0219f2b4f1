# Extra settings for sokoban_ppo.py: 60 iterations on 6x6 rooms with one box (SimpleSokoban), then
# 8x8 rooms with two boxes (LargerSokoban). Evaluation uses the larger rooms.
# Example:  torchrun --standalone train.py config/sokoban_ppo.py config/envs/sokoban_to_large.py

env = "sokoban:size=6,boxes=1,search_depth=300 @60 > sokoban:size=8,boxes=2,search_depth=10"
