# StarPO-S with GRPO on a dataset of reasoning-gym: spell a word of 3 to 5 letters backward. A game
# allows one answer. Install requirements/hubs.txt first, see docs/hubs.md.
# Launch:  torchrun --standalone train.py config/spell_grpo.py

env = "rg:spell_backward,settings=min_word_len=3;max_word_len=5"
estimator = "grpo"
actions_per_turn = 1
