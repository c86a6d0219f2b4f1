# Overlay for any experiment: SimpleTIR (arXiv 2509.02479). Trajectories with a turn without an
# action are not trained on. They stay in the baselines of their groups.
# Example:  torchrun --standalone train.py config/frozenlake_grpo.py config/methods/simple_tir.py

drop_void = True
