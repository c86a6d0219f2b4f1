# Overlay behind frozenlake_ppo.py: two groups of FrozenLake for one of Sokoban; both are scored.

env = (
    "2*frozenlake:size=4,frozen_prob=0.8,success_rate=0.8 + sokoban:size=6,boxes=1,search_depth=300"
)
reward_norm = "mean_std"
reward_norm_over = "env"  # rewards are comparable inside each only
