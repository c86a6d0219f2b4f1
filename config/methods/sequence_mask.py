# Overlay for any experiment: drops trajectories with a negative advantage whose tokens are, in the
# geometric mean, over 1% less likely than in the engine (arXiv 2512.02556). It acts from the second
# optimizer step of an iteration on, or if the engine has a lower precision than the trainer. The
# bound is our choice. ARLArena's scripts for CISPO and SAPO (2602.21534) use the bound 0.997, and
# the old policy in place of the engine.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/sequence_mask.py

sequence_mask = 0.99
batch_size = 8
