# Overlay for any experiment: five passes over the kept trajectories of each iteration. With
# frozenlake_ppo.py, it takes 200 optimizer steps in 40 iterations. Without this overlay, 200 steps
# take 200 iterations.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/online_5.py

num_epochs = 5
num_iterations = 40
