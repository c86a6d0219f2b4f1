# Extra settings for frozenlake_ppo.py: a reward for true statements in thoughts. Without this
# reward, thoughts fade during training (finding 6 of the StarPO paper).
# Example:  torchrun --standalone train.py config/frozenlake_ppo.py config/methods/think_reward.py

think_reward = 0.1
