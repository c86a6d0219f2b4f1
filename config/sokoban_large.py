# Overlay: LargerSokoban, 8x8 rooms with two boxes.
# Launch:  torchrun --standalone train.py config/sokoban_ppo.py config/sokoban_large.py --out_dir=out/sokoban_large

env = "sokoban:size=8,boxes=2,search_depth=10"
