# Overlay for any experiment: SimpleTIR (arXiv 2509.02479). It does not train on a trajectory with
# a turn that executed no action. Such a trajectory stays in the baseline of its group.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/simple_tir.py

drop_void = True
