# Extra settings for sokoban_ppo.py: evaluation on the training environment and on three other
# environments, as in the StarPO paper (tables 2 to 4).
# Example:  torchrun --standalone train.py config/sokoban_ppo.py config/envs/sokoban_transfer.py

eval_env = "sokoban:size=6,boxes=1,search_depth=300"
eval_env += " + sokoban:size=6,boxes=1,search_depth=30,symbols=newvocab"  # other symbols
eval_env += " + sokoban:size=8,boxes=2,search_depth=10"  # larger rooms
eval_env += " + frozenlake:size=4,frozen_prob=0.8,success_rate=0.8"  # another game
