# Overlay behind frozenlake_ppo.py: pays for thoughts that state the board truly; the paper's finding 6: else they fade.

think_reward = 0.1
