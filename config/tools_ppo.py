# StarPO-S with PPO on Tools: questions about invented towns. The agent can call a search, a
# calculator, a key-value store and `answer`, which ends the game. The scripted player `optimal`
# makes 2 to 5 calls in a game.
# Launch:  torchrun --standalone train.py config/tools_ppo.py

env = "tools:task=all,results=2"
estimator = "gae"
max_turns = 8
actions_per_turn = 1
actions_per_traj = 8
max_response_tokens = 200
