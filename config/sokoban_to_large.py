# Overlay behind sokoban_ppo.py: SimpleSokoban for 60 iterations, then LargerSokoban (8x8, two boxes), which is scored.

env = "sokoban:size=6,boxes=1,search_depth=300 @60 > sokoban:size=8,boxes=2,search_depth=10"
