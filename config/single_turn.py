# Overlay behind sokoban_ppo.py or quest_ppo.py: a reply sees the present turn only; each turn is a training sequence.

context_turns = 1  # 2 would show the turn before as well
