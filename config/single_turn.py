# Overlay: every reply sees the present observation only, and each turn is a training sequence of its own; 2 would show
# the turn before as well.
# Launch:  torchrun --standalone train.py config/sokoban_ppo.py config/single_turn.py --out_dir=out/single_turn

context_turns = 1
