# Overlay behind sokoban_ppo.py: a reply sees the present observation only, and each turn is a training sequence.

context_turns = 1  # 2 would show the turn before as well
