# Overlay for any experiment: five passes over the kept trajectories of each iteration. On
# frozenlake_ppo.py, 40 iterations make 200 optimizer steps, as many as without this file, on a
# fifth of the samples.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/online_5.py

num_epochs = 5
num_iterations = 40
