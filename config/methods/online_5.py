# Overlay for any experiment: five optimizer steps on each batch of rollouts. 40 iterations make 200
# steps, as many as frozenlake_ppo.py.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/online_5.py

num_epochs = 5
num_iterations = 40
