"""See what an agent did: the trajectories of a run in one HTML file, one as a GIF, curves of runs as a PNG.

    python view.py out/frozenlake_ppo                        # its view.html: opens from disk, needs no network
    python view.py out/frozenlake_ppo --gif=12               # trajectory 12 of that page, animated
    python view.py out/frozenlake_ppo out/frozenlake_grpo    # learning curves with 95 % Wilson intervals
    python view.py out/frozenlake_ppo --panel                # figure 6 of arXiv 2504.20073 with early warnings

What models and environments wrote is data: JSON in a script tag that no text can close, put into the page as text only.
"""

from configurator import UserError, run_main

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from textwrap import fill

from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.figure import Figure

from dialogue import parse_response
from support.pictures import COLORS, LAYERS, draw, symbols, take_apart
from support.run_folder import load_saved, read_rows

STAGES = {"eval_start.jsonl": "start", "trajectories.jsonl": "", "eval_final.jsonl": "end"}
PANEL = ("reward", "in_group_reward_std", "entropy", "grad_norm")  # entropy in nats a token


# ---------- trajectories


def load(run: Path, wanted: int = 0) -> dict:
    """What the page shows: trajectories in the order of training; token strings and system messages by number.

    A turn has the parts of its observation, thought, actions, reward, `ok` (well-formed), tokens and their surprise in
    hundredths of a nat. The evaluations of a prompt are a group: the start beside the end.
    Raises: UserError if the folder has no trajectories, or not as many as are wanted."""
    think, texts, trajectories = load_saved(run).think, {}, []

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    for stage, r in (
        (stage, record) for file, stage in STAGES.items() for record in read_rows(run / file)
    ):
        turns, when = [], stage or f"iteration {r['step']}"
        for turn in r["turns"]:
            parts = take_apart(turn["observation"], symbols(r["env"])) | {"ok": turn["format_ok"]}
            parts |= {
                "thought": parse_response(turn["response"], think=think).thought,
                "reward": turn["reward"],
            }
            parts |= {"tokens": [number(token) for token in turn["tokens"] or [turn["response"]]]}
            parts |= {
                "surprise": [round(100 * nats) for nats in turn["surprise"]],
                "actions": turn["actions"],
            }
            parts["closing"] = take_apart(turn.get("closing", ""), symbols(r["env"]))[
                "board"
            ]  # after the last action
            turns.append(parts)
        group = f"prompt {r['seed'][0]}" if stage else f"{when}, group {r['group']}"
        shown = {key: r[key] for key in ("env", "status", "success", "score")} | {
            "when": when,
            "group": group,
        }
        shown |= {
            "who": stage or f"member {r['member']}",
            "system": number(r["system"]),
            "turns": turns,
        }
        trajectories.append(shown)
    if not trajectories:
        raise UserError(
            f"{run} holds no trajectories; expected a folder with one of {', '.join(STAGES)}"
        )
    if wanted >= len(trajectories):
        raise UserError(f"{run} has trajectories from 0 to {len(trajectories) - 1}, got {wanted}")
    pictures = {t["env"]: symbols(t["env"]) for t in trajectories}
    shared = {
        "name": run.name,
        "texts": list(texts),
        "pictures": pictures,
        "layers": LAYERS,
        "colors": COLORS,
    }
    return shared | {"trajectories": trajectories}


def page(data: dict) -> str:
    """The HTML file. JSON of `data` is ASCII without '<', so nothing in it ends the script tag or a line."""
    return PAGE.replace("DATA", json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))


def draw_gif(data: dict, index: int, path: Path) -> None:
    """Animate a trajectory, a frame a turn and one of its end."""
    trajectory, figure = data["trajectories"][index], Figure(figsize=(8, 4))
    turns, known, (left, right) = (
        trajectory["turns"],
        data["pictures"][trajectory["env"]],
        figure.subplots(1, 2),
    )

    def frame(k: int) -> None:  # the last one is of the end
        for axes in (left, right):
            axes.clear(), axes.axis("off")
        turn = turns[min(k, len(turns) - 1)]
        draw(left, turn["board"] if k < len(turns) else turn["closing"] or turn["board"], known)
        parts = [turn["budget"], turn["text"], turn["thought"], " || ".join(turn["actions"])]
        parts = [*parts, f"Reward {turn['reward']:g}"] if k < len(turns) else [trajectory["status"]]
        wrapped = ("\n".join(fill(line, 44) for line in part.split("\n")) for part in parts if part)
        text = "\n\n".join(wrapped).encode(errors="replace").decode()
        right.text(0, 1, text, va="top", parse_math=False, transform=right.transAxes)

    FuncAnimation(figure, frame, len(turns) + 1, init_func=lambda: None).save(
        path, PillowWriter(fps=0.7)
    )


# ---------- curves


def draw_curves(runs: Sequence[Path], path: Path) -> None:
    """Success on the fixed prompts over iterations, the start included, and reference players as lines."""
    from support.statistics import wilson_interval

    figure, players, place = Figure(figsize=(8, 4.5), layout="constrained"), set(), -1.0
    axes = figure.subplots()
    for run in runs:
        n, rows = load_saved(run).eval_size, read_rows(run / "metrics.jsonl")
        scores = (
            json.loads((run / "scores.json").read_text()) if (run / "scores.json").is_file() else {}
        )
        scores = next(iter(scores.values()), {})  # of the environment that the run is about
        rates = {
            row["step"]: row["eval_success"] for row in rows if row["eval_success"] is not None
        }
        rates = ({0: fmean(scores["start"])} if scores else {}) | rates
        if not rates:
            raise UserError(f"{run} has no evaluation yet")
        low, high = zip(
            *(wilson_interval(round(n * rate), n) for rate in rates.values()), strict=True
        )
        (line,) = axes.plot(rates.keys(), rates.values(), marker=".", label=run.name)
        axes.fill_between(rates.keys(), low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        players |= {(fmean(scores[key]), key) for key in scores if key not in ("start", "after RL")}
    for rate, name in sorted(players):
        place = max(rate, place + 0.045)  # names of players that are as good stand above each other
        axes.axhline(rate, color="0.6", linewidth=0.8, linestyle=":")
        axes.text(
            1.01,
            place,
            name,
            color="0.4",
            fontsize=8,
            va="center",
            transform=axes.get_yaxis_transform(),
        )
    axes.set(xlabel="iteration", ylabel="success on fixed prompts", ylim=(-0.02, 1.02))
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)


def draw_panel(runs: Sequence[Path], path: Path) -> None:
    """Figure 6 of arXiv 2504.20073: what moves before a run collapses, with a line where an early sign appears."""
    from support.echo_trap import new_warnings

    figure, notes = Figure(figsize=(9, 6), layout="constrained"), []
    plots = figure.subplots(2, 2, sharex=True)
    for run in runs:
        if not (rows := read_rows(run / "metrics.jsonl")):
            raise UserError(f"{run} has no iteration yet")
        signs = [
            (row["step"], text) for i, row in enumerate(rows) for text in new_warnings(rows[: i + 1])
        ]
        notes += [f"{run.name}, iteration {step}: {text}" for step, text in signs]
        for axes, key in zip(plots.flat, PANEL, strict=True):
            known = {row["step"]: row[key] for row in rows if row[key] is not None}
            (line,) = axes.plot(known.keys(), known.values(), linewidth=1.2, label=run.name)
            for step, _ in signs:
                axes.axvline(step, color=line.get_color(), linewidth=0.8, linestyle="--")
            axes.set(ylabel=key, yscale="log" if key == "grad_norm" else "linear")
    plots[0, 0].legend(frameon=False)
    figure.supxlabel("\n".join(["iteration", *notes]), fontsize=9)
    figure.savefig(path, dpi=150)


def main(argv: list[str]) -> None:
    runs = [Path(arg) for arg in argv if not arg.startswith("--")]
    flags = dict(arg[2:].partition("=")[::2] for arg in argv if arg.startswith("--"))
    number, one = (
        flags.get("gif", "0"),
        len(runs) == 1 or "gif" not in flags,
    )  # of several runs there is no number 12
    legal = (
        len(flags) <= 1
        and flags.keys() <= {"gif", "panel"}
        and number.isdecimal()
        and not flags.get("panel")
    )
    if not (runs and one and legal):
        wanted = "folders of runs and one of --gif=NUMBER, --panel or none"
        raise UserError(f"expected {wanted}, got {' '.join(argv)!r}")
    if "gif" in flags:
        draw_gif(
            load(runs[0], int(number)), int(number), path := runs[0] / f"trajectory_{number}.gif"
        )
    elif "panel" in flags:
        draw_panel(runs, path := runs[0] / "panel.png")
    elif len(runs) > 1:
        draw_curves(runs, path := runs[0] / "curves.png")
    else:
        (path := runs[0] / "view.html").write_text(page(load(runs[0])), encoding="utf-8")
    print(f"wrote {path}; open {path.resolve().as_uri()}")


# ---------- the page


PAGE = r"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>trajectories</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'unsafe-inline'"><style>
:root{color-scheme:light dark;--bg:light-dark(#f8f7f4,#15171a);--card:light-dark(#fff,#1d2024);
--ink:light-dark(#24282c,#e3e5e7);--soft:light-dark(#6f757b,#979fa7);--line:light-dark(#e5e2dc,#2e3338);
--pick:light-dark(#eaf0f5,#28313a);--bad:light-dark(#c65d45,#e27d66);--hot:light-dark(#f0a63a,#c8781a);
--mono:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
*{box-sizing:border-box} svg{display:block;width:100%} circle{stroke-width:0}
polygon{stroke-width:.06;stroke-linejoin:round} label,.soft{color:var(--soft);font-size:13px;font-weight:400}
body{margin:0;height:100vh;display:grid;grid-template-columns:290px 1fr;background:var(--bg);color:var(--ink);
font:15px/1.5 ui-sans-serif,system-ui,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
aside{display:flex;flex-direction:column;min-height:0;border-right:1px solid var(--line)}
header{padding:18px 16px 12px} header b{display:flex;justify-content:space-between;font-size:16px}
#filters{display:grid;grid-template-columns:88px 1fr;gap:7px;align-items:center;margin:8px 0}
select,button,#tokens,.card{font:inherit;font-size:13px;color:inherit;background:var(--card);min-width:0;cursor:pointer;
border:1px solid var(--line);border-radius:8px;padding:3px 8px} #list{overflow:auto;border-top:1px solid var(--line)}
.row{height:50px;padding:0 16px;display:grid;gap:0 12px;grid-template:25px 18px/9px 1fr auto;cursor:pointer;
font-size:14px;align-items:end;white-space:nowrap} .row:hover,.row.picked{background:var(--pick)}
.row :nth-child(4){grid-column:2} .row :nth-child(n+3){text-align:right} .row :nth-child(4){text-align:left}
.dot{flex:none;width:9px;height:9px;border-radius:5px;background:var(--bad)} .won{background:var(--goal)}
main{overflow:auto;padding:28px 40px 40px;min-width:0} main>*{max-width:1000px} .row .dot{margin-bottom:6px}
h1,h2{font-size:22px;font-weight:600;margin:0 0 2px} h2{font-size:13px;color:var(--soft);margin:22px 0 6px}
#about,#facts,#turns,.head{display:flex;gap:7px;align-items:center} #turns,#facts{flex-wrap:wrap} #turns{margin:18px 0}
#turns .picked,.card.picked{border-color:var(--ink)} #facts{gap:20px} .false{color:var(--bad)} .over{opacity:.5}
#scene{display:grid;grid-template-columns:minmax(200px,300px) 1fr;gap:40px} #scene h2:first-child{margin-top:0}
pre{font:13px/1.6 var(--mono);margin:8px 0 0} pre,#thought{white-space:pre-wrap;overflow-wrap:anywhere}
#thought{font:17px/1.6 Charter,"Iowan Old Style",Georgia,serif} #tokens span{border-radius:3px;padding:2px 0}
.chip{background:var(--pick);border-radius:7px;padding:3px 10px;margin:0 6px 6px 0;display:inline-block}
#tokens{font:13px/1.9 var(--mono);margin:0 0 8px;cursor:auto} #tokens,.card{padding:12px} .card>*{overflow:hidden}
.card svg{margin:8px 0 6px} #closing{width:150px;margin-top:12px} .head{white-space:nowrap} details{margin-top:26px}
#legend{display:inline-block;width:110px;height:8px;border-radius:4px;margin:0 6px;border:1px solid var(--line);
background:linear-gradient(90deg,transparent,var(--hot))} .head .soft{margin-left:auto}
#cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(148px,1fr));gap:12px} .card pre{max-height:110px}
@media(max-width:800px){body,#scene{display:block;height:auto} #list{height:220px} main{padding:20px}}
</style>
<aside><header><b><span id="name"></span><button id="theme" title="light or dark">◐</button></b>
<div id="filters"></div><span id="count" class="soft"></span></header><div id="list"><div id="rows"></div></div></aside>
<main><h1 id="title"></h1><div id="about" class="soft"></div><div id="turns"></div>
<div id="scene"><div><div id="board"></div><pre id="text"></pre><p id="told" class="soft"></p></div>
<div><h2>Thought</h2><div id="thought"></div><h2>Answer</h2><div id="answer"></div><h2>Outcome</h2>
<div id="facts"></div><div id="closing"></div></div></div><h2>Sampled tokens</h2><pre id="tokens"></pre>
<div class="soft">surprise, −log p of the sampled token: 0 <i id="legend"></i> 3 nats or more</div>
<h2 id="members"></h2><div id="cards"></div>
<details><summary class="soft">System message</summary><pre id="system"></pre></details>
<p class="soft">← → turns &nbsp; ↑ ↓ trajectories</p></main>
<script type="application/json" id="data">DATA</script>
<script>
const $ = id => document.getElementById(id), data = JSON.parse($('data').textContent), all = data.trajectories
const FILTERS = {outcome: t => t.success ? 'success' : 'no success', iteration: t => t.when, group: t => t.group,
  environment: t => t.env}, KEYS = Object.keys(FILTERS), ROW = 50  // pixels
const ARROWS = new Map([['left', '←'], ['down', '↓'], ['right', '→'], ['up', '↑']])
let shown = [], at = 0, turn = 0

function make(tag, className = '', textContent = '', ...children) {  // text becomes a text node, whatever is in it
  const node = Object.assign(document.createElement(tag), {className, textContent})
  node.append(...children)
  return node
}
const dot = t => make('i', t.success ? 'dot won' : 'dot'), soft = text => make('span', 'soft', text)
const signed = x => (x < 0 ? '−' : '') + Math.abs(x).toFixed(2), arrow = name => ARROWS.get(name.toLowerCase()) || ''
const on = (node, action) => Object.assign(node, {onclick: action})

function draw(t, text) {  // a board as a picture
  const rows = text.split('\n').map(row => [...row]), space = 'http://www.w3.org/2000/svg'
  const svg = document.createElementNS(space, 'svg'), set = (node, values) => {
    for (const key in values) node.setAttribute(key, values[key])
  }
  set(svg, {viewBox: `0 0 ${rows[0].length} ${rows.length}`, role: 'img', 'aria-label': text})
  rows.forEach((row, y) => row.forEach((symbol, x) => data.pictures[t.env][symbol].split(' ').forEach(layer => {
    for (const [color, ...n] of data.layers[layer]) {
      const shape = document.createElementNS(space, n.length === 3 ? 'circle' : 'polygon')
      set(shape, n.length === 3 ? {cx: x + n[0], cy: y + n[1], r: n[2]} : {points: n.map((v, i) => v + [x, y][i % 2])})
      shape.style.fill = shape.style.stroke = `var(--${color})`, svg.append(shape)
    }
  })))
  return svg
}

function filter(changed) {  // a list offers what the others leave; the one just changed is the last to give way
  const passes = (t, but) => KEYS.every(key => key === but || !$(key).value || FILTERS[key](t) === $(key).value)
  for (const key of [...KEYS.filter(key => key !== changed), ...KEYS.filter(key => key === changed)]) {
    const values = new Set(all.filter(t => passes(t, key)).map(FILTERS[key])), chosen = $(key).value
    $(key).replaceChildren(new Option('all', ''), ...[...values].map(value => new Option(value)))
    $(key).value = values.has(chosen) ? chosen : ''
  }
  shown = all.flatMap((t, i) => passes(t) ? [i] : [])
  const won = shown.filter(i => all[i].success).length
  $('count').textContent = `${shown.length} of ${all.length} trajectories, ${won} successful`
  go(shown[0])
}

function rows() {  // of the list, those in sight and a few more
  const first = Math.max(0, Math.floor($('list').scrollTop / ROW) - 5)
  $('rows').style.cssText = `height: ${shown.length * ROW}px; padding-top: ${first * ROW}px`
  $('rows').replaceChildren(...shown.slice(first, first + 60).map(i => {
    const t = all[i], row = make('div', i === at ? 'row picked' : 'row', '', dot(t), make('span', '', t.group))
    row.append(soft(signed(t.score)), soft(`${t.who}, turns: ${t.turns.length}`), soft(i))
    return on(row, () => go(i))
  }))
}

function go(i, k = 0) {  // show turn k of trajectory i
  const t = all[i], list = $('list'), place = shown.indexOf(i) * ROW
  at = i, turn = Math.max(0, Math.min(k, t.turns.length - 1))
  list.scrollTop = Math.min(place, Math.max(list.scrollTop, place + ROW - list.clientHeight)), rows()
  const now = t.turns[turn], valid = make('span', now.ok, now.ok ? 'valid' : 'not valid')
  $('title').textContent = `${t.group}, ${t.who}`, $('text').textContent = now.text
  $('about').replaceChildren(dot(t), `${t.status.replaceAll('_', ' ')} with ${signed(t.score)} in ${t.env}`)
  $('turns').replaceChildren(...t.turns.map((one, k) => on(
    make('button', k === turn ? 'picked' : '', `turn ${k + 1} `, soft(signed(one.reward))), () => go(i, k))))
  for (const [id, board] of [['board', now.board], ['closing', now.closing]])
    $(id).replaceChildren(...(board ? [draw(t, board)] : []))
  $('told').textContent = [now.budget, now.report].filter(Boolean).join('. ')
  $('thought').textContent = now.thought || '–', $('system').textContent = data.texts[t.system]
  $('answer').replaceChildren(...now.actions.map(a => make('span', 'chip', `${arrow(a)} ${a}`)))
  $('facts').replaceChildren(`reward ${signed(now.reward)}`, valid)
  $('tokens').replaceChildren(...now.tokens.map((id, i) => {
    const token = make('span', '', data.texts[id]), nats = now.surprise[i] / 100
    token.title = i in now.surprise ? `${nats.toFixed(2)} nats` : 'not sampled'
    token.style.background = `color-mix(in srgb, var(--hot) ${Math.min(100, nats / .03) || 0}%, transparent)`
    return token
  }))
  const members = all.flatMap((other, j) => other.group === t.group && other.env === t.env ? [j] : [])
  $('members').textContent = `${members.length} of this group, turn ${turn + 1}`
  $('cards').replaceChildren(...members.map(j => {
    const other = all[j], said = other.turns[turn] || other.turns.at(-1), done = turn < other.turns.length ? '' : 'over'
    const picture = said.board ? draw(other, said.board) : make('pre', '', said.thought || said.text)
    const head = make('div', 'head', '', dot(other), other.who, soft(signed(other.score)))
    const answer = soft(said.actions.map(a => arrow(a) || a).join(' ') || '–')
    return on(make('div', `card ${j === i ? 'picked' : done}`, '', head, picture, answer), () => go(j, turn))
  }))
}

const root = document.documentElement.style
for (const [name, pair] of Object.entries(data.colors)) root.setProperty(`--${name}`, `light-dark(${pair})`)
$('list').onscroll = rows
for (const key of KEYS) {
  const choice = Object.assign(make('select'), {id: key, onchange: () => { choice.blur(), filter(key) }})
  $('filters').append(Object.assign(make('label', '', key), {htmlFor: key}), choice)
}
const scheme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'
on($('theme'), () => root.colorScheme = (root.colorScheme || scheme) === 'dark' ? 'light' : 'dark')
document.onkeydown = event => {
  const step = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key]
  if (!step || event.target.matches('select') || event.ctrlKey || event.metaKey || event.altKey) return
  event.preventDefault(), step[0] ? go(shown[shown.indexOf(at) + step[0]] ?? at) : go(at, turn + step[1])
}
document.title = $('name').textContent = data.name
filter()
</script></html>
"""


if __name__ == "__main__":
    run_main(main)
