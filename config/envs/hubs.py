# Extra settings for any experiment: 29 games of GEM, 32 datasets of reasoning-gym and 6 games of
# gymnasium (docs/hubs.md). Evaluation plays 4 prompts of each game and dataset.
# Install requirements/hubs.txt first.
# Example:  python eval.py config/frozenlake_grpo.py config/envs/hubs.py --player=random

_gem = """
    Game2048-v0-easy Game2048-v0-hard Game2048-v0-extreme-hard Game2048-v0-random
    FifteenPuzzle-v0-easy FifteenPuzzle-v0-hard FifteenPuzzle-v0-random
    GuessTheNumber-v0-easy GuessTheNumber-v0-hard GuessTheNumber-v0-random
    Hangman-v0-easy Hangman-v0-hard Hangman-v0-random
    Mastermind-v0-easy Mastermind-v0-hard Mastermind-v0-random
    Minesweeper-v0-easy Minesweeper-v0-hard Minesweeper-v0-random
    Sokoban-v0-easy Sudoku-v0-easy Sudoku-v0-hard
    TowerofHanoi-v0-easy TowerofHanoi-v0-hard TowerofHanoi-v0-random
    Wordle-v0-easy Wordle-v0-hard Wordle-v0-random WordSearch-v0-easy
"""
_reasoning_gym = """
    ab acre basic_arithmetic binary_alternation binary_matrix bitwise_arithmetic
    calendar_arithmetic chain_sum complex_arithmetic count_bits decimal_chain_sum dice
    fraction_simplification gcd knights_knaves largest_island lcm leg_counting letter_counting
    list_functions manipulate_matrix maze mini_sudoku number_sequence number_sorting
    prime_factorization products shortest_path spell_backward spiral_matrix syllogism
    time_intervals
"""
_gymnasium = "Taxi-v4 FrozenLake-v1 CliffWalking-v1 Blackjack-v1 CartPole-v1 MountainCar-v0"

_specs = [f"gem:game:{name}" for name in _gem.split()]
_specs += [f"rg:{name}" for name in _reasoning_gym.split()]
_specs += [f"gymnasium:{name}" for name in _gymnasium.split()]

env = " + ".join(_specs)
eval_size = 4
max_turns = 20
actions_per_turn = 1
actions_per_traj = 20
