# Extra settings for any experiment: five passes over the trajectories that the filter keeps in each
# iteration. An iteration of frozenlake_ppo.py then has five optimizer steps instead of one. So 200
# optimizer steps need 40 iterations instead of 200.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/online_5.py

num_epochs = 5
num_iterations = 40
