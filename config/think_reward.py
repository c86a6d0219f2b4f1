# Overlay behind frozenlake_ppo.py: pays for thoughts that state the board truly; tests finding 6 of arXiv 2504.20073,
# that reasoning fades without a reward of its own.

think_reward = 0.1
