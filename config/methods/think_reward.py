# Extra settings for frozenlake_ppo.py: a reward for true statements about the board in thoughts.
# According to the StarPO paper (finding 6), thoughts fade during training without such a reward.
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/think_reward.py

think_reward = 0.1
