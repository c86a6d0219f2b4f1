# StarPO-S with GRPO on Repair: the agent reads a function, runs tests, edits lines and submits.
# Launch:  torchrun --standalone train.py config/repair_grpo.py

# f is the share of the hidden tests that pass before the agent's edits. p is the share that pass
# after the edits. A game earns (p - f) / (1 - f), or 0 if p is below f.
env = "repair:reward=ratio"
estimator = "grpo"
max_turns = 8
actions_per_turn = 1
actions_per_traj = 8
