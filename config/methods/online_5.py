# Extra settings for any experiment: five passes over the kept trajectories of each iteration. An
# iteration of frozenlake_ppo.py then has five optimizer steps instead of one. So a run of 200 steps
# needs 40 iterations instead of 200.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/online_5.py

num_epochs = 5
num_iterations = 40
