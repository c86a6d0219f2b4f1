# Overlay behind sokoban_ppo.py: LargerSokoban, 8x8 rooms with two boxes.

env = "sokoban:size=8,boxes=2,search_depth=10"
