# Overlay behind sokoban_ppo.py: the paper's tables 2 to 4, besides its own rooms three environments never trained on.

eval_env = "sokoban:size=6,boxes=1,search_depth=300"
eval_env += " + sokoban:size=6,boxes=1,search_depth=30,symbols=newvocab"  # other symbols
eval_env += " + sokoban:size=8,boxes=2,search_depth=10"  # larger rooms
eval_env += " + frozenlake:size=4,frozen_prob=0.8,success_rate=0.8"  # another game
