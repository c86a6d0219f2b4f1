"""The experiment of the study of collapse: many methods at large learning rates."""

from studies.experiments import COLLAPSE_SIGNS, EVALUATION, Curve, Experiment


def collapsing() -> dict[str, Curve]:
    """Return many methods at the learning rate 2e-3, and some methods at lower rates.

    At 2e-3, most runs of StarPO collapse.

    An iteration samples 32 trajectories, or up to 96 with dynamic sampling. By default, an
    iteration makes four optimizer steps on 8 trajectories each. A method with "one step" in its
    name makes one step on all trajectories that it keeps. A method with "two epochs" in its name
    makes eight steps. StarPO-S keeps only 8 of the 32 trajectories, so StarPO-S with four steps
    trains on 2 trajectories in each step.
    Dynamic sampling and SAMPO drop groups in which all scores are equal, so an iteration of these
    two methods may have fewer than four steps.
    The four methods with "bfloat16 engine" in their names sample in bfloat16, train in float32 (on
    a CPU), and use the learning rate 1e-3. At this rate, StarPO in float32 collapses in none of
    three runs.
    """
    s_one_step = {"filter_keep": 0.25, "clip_high": 0.28}
    s_four_steps = {**s_one_step, "batch_size": 2}
    methods = {
        "StarPO": collapse_cell(),
        "StarPO with a KL of 0.001": collapse_cell(kl_coef=0.001),
        "StarPO with a KL of 0.1": collapse_cell(kl_coef=0.1),
        "StarPO with a KL of 0.3": collapse_cell(kl_coef=0.3),
        "StarPO with a KL of 0.1 and one step": collapse_cell(kl_coef=0.1, batch_size=32),
        "StarPO with a higher clip": collapse_cell(clip_high=0.28),
        "StarPO with one step": collapse_cell(batch_size=32),
        "StarPO with two epochs": collapse_cell(num_epochs=2),
        "StarPO with a large Adam epsilon": collapse_cell(adam_eps=1e-4),
        "StarPO-S with one step": collapse_cell(**s_one_step),
        "StarPO-S with four steps": collapse_cell(**s_four_steps),
        "StarPO-S with a KL of 0.001 and four steps": collapse_cell(**s_four_steps, kl_coef=0.001),
        "StarPO-S that never skips": collapse_cell(**s_four_steps, filter_zero_std=True),
        "dynamic sampling": collapse_cell("dynamic_sampling"),
        "GSPO": collapse_cell("gspo"),
        "sequence mask": collapse_cell("sequence_mask"),
        "DPPO-TV": collapse_cell("dppo_tv"),
        "GiGPO": collapse_cell("gigpo"),
        "SAMPO": collapse_cell("sampo"),
    }
    mismatch = {"engine_dtype": "bfloat16", "learning_rate": 1e-3}
    mismatched = {
        "bfloat16 engine": collapse_cell(**mismatch, importance_cap=1e6),
        "bfloat16 engine with TIS": collapse_cell(**mismatch),
        "bfloat16 engine with IcePop": collapse_cell("icepop", **mismatch),
        "bfloat16 engine with a sequence mask": collapse_cell(
            "sequence_mask", **mismatch, importance_cap=1e6
        ),
    }
    curves = {f"frozenlake {name} at 2e-3": method for name, method in methods.items()}
    curves |= {f"frozenlake {name} at 1e-3": method for name, method in mismatched.items()}
    for rate in ("5e-4", "1e-3", "1.5e-3"):
        curves[f"frozenlake StarPO at {rate}"] = collapse_cell(learning_rate=float(rate))
    for rate in ("5e-4", "1e-3", "1.5e-3"):
        starpo_s = collapse_cell(**s_four_steps, learning_rate=float(rate))
        curves[f"frozenlake StarPO-S with four steps at {rate}"] = starpo_s
    for rate in ("1e-3", "2e-3"):
        paid = collapse_cell("think_reward", learning_rate=float(rate))
        curves[f"frozenlake StarPO with a think reward at {rate}"] = paid
    return curves


def collapse_cell(*overlays: str, **overrides: object) -> Curve:
    return Curve(("frozenlake_grpo",), overrides, overlays=("tiny_collapse", *overlays))


EXPERIMENTS = {
    "collapse": Experiment(
        "which methods survive large learning rates",
        EVALUATION + COLLAPSE_SIGNS,
        collapsing(),
        scales=("tiny",),
        files="collapse_runs",
    ),
}
