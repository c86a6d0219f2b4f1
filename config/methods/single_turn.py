# Extra settings for sokoban_ppo.py or quest_ppo.py: the policy sees only the present turn. Each
# turn is a training sequence of its own.
# Example:  torchrun --standalone train.py config/sokoban_ppo.py config/methods/single_turn.py

context_turns = 1  # with 2, the policy also sees the previous turn
