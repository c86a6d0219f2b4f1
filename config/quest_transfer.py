# Overlay: quests of other sizes are scored too. q is the number of commands that a solution takes.

_sizes = "w=2,o=3,q=4 w=8,o=3,q=4 w=2,o=12,q=4 w=8,o=12,q=4 w=4,o=6,q=8"
eval_env = " + ".join(f"quest:{size},goal=full,show=none" for size in _sizes.split())
