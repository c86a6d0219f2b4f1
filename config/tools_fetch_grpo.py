# StarPO-S with GRPO on the `fetch` questions of Tools. The agent reads the name of a town from a
# key-value store, searches for the town, and answers with a fact about this town.
# Launch:  torchrun --standalone train.py config/tools_fetch_grpo.py

env = "tools:task=fetch,results=1"
estimator = "grpo"
max_turns = 8
actions_per_turn = 1
actions_per_traj = 8
max_response_tokens = 200
