# Extra settings for any experiment: SimpleTIR (arXiv 2509.02479). It does not train on trajectories
# with a turn that executed no action. These trajectories stay in the baseline of the group.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/simple_tir.py

drop_void = True
