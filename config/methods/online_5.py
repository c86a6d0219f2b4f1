# Extra settings for any experiment: five passes over the kept trajectories of each iteration. With
# frozenlake_ppo.py, 200 optimizer steps then take 40 iterations instead of 200.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/online_5.py

num_epochs = 5
num_iterations = 40
