# StarPO-S with GRPO on reasoning-gym: spell a word of 3 to 5 letters backward.
# Install requirements/hubs.txt first (docs/hubs.md).
# Launch:  torchrun --standalone train.py config/spell_grpo.py

env = "rg:spell_backward,settings=min_word_len=3;max_word_len=5"
estimator = "grpo"
actions_per_turn = 1
