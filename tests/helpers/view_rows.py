"""Rows of trajectories for tests of the page that tools/view.py writes."""

import json

LAKE = "frozenlake:size=2,success_rate=1"
ROOM = "sokoban:symbols=newvocab"
# This text tries to run a script in the page and to send control codes to a terminal.
HOSTILE = (
    "</script><script>window.hacked = 1</script><!-- "
    '<img src="x" onerror="window.hacked = 2"> & \u2028 \ud800 \u202e \x1b[2J {{style}}'
)
# The page must show HOSTILE as this text, in which escapes replace the invisible characters.
SHOWN = (
    "</script><script>window.hacked = 1</script><!-- "
    '<img src="x" onerror="window.hacked = 2"> & '
    r"\u2028 \ud800 \u202e \x1b[2J {{style}}"
)


def turn_record(
    observation, thought="", actions=(), reward=0.0, tokens=(), surprise=(), ok=True, **more
):
    response = f"<think>{thought}</think><answer>{' || '.join(actions)}</answer>"
    return {
        "observation": observation,
        "response": response,
        "actions": list(actions),
        "num_actions": len(actions),
        "format_ok": ok,
        "reward": reward,
        "tokens": list(tokens),
        "surprise": list(surprise),
        **more,
    }


def record(env, turns, status="failure", member=0, **row):
    return {
        **row,
        "env": env,
        "seed": [7],
        "member": member,
        "status": status,
        "success": status == "success",
        "score": sum(turn["reward"] for turn in turns),
        "system": f"rules of {env}",
        "turns": turns,
    }


def to_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)
