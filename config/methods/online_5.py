# Overlay for any experiment: five optimizer steps on each batch of rollouts.
# 40 iterations * 5 passes over the 32 kept trajectories = 200 optimizer steps. frozenlake_ppo.py
# also makes 200 steps, on five times as many samples.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/online_5.py

num_epochs = 5
num_iterations = 40
