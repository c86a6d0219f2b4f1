# Overlay behind frozenlake_ppo.py: pays for true statements in thoughts, which fade else (finding 6 of the paper).

think_reward = 0.1
