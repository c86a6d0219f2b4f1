// ---------- trajectories that the reader selects or writes notes on, and the export

// The browser keeps the marks of a page under this key.
const MARKS_KEY = `nanoRAGEN marks of ${data.runs.map(run => run.name).join(' and ')}`
const NO_MARK = {selected: false, note: ''}
let marks = readMarks() // name of a trajectory -> {selected, note}

function readMarks() {
  try {
    return new Map(JSON.parse(localStorage.getItem(MARKS_KEY) ?? '[]'))
  } catch {
    return new Map() // the browser refuses storage, or holds something else under this key
  }
}

function writeMarks() {
  try {
    localStorage.setItem(MARKS_KEY, JSON.stringify([...marks]))
  } catch {
    // without storage, marks last until the page is closed
  }
}

function nameOf(trajectory) {
  return JSON.stringify([data.runs[trajectory.run].name, trajectory.env, ...trajectory.address])
}

function markOf(trajectory) {
  return {...NO_MARK, ...marks.get(nameOf(trajectory))}
}

function changeMark(trajectory, change) {
  const mark = {...markOf(trajectory), ...change}
  if (mark.selected || mark.note) marks.set(nameOf(trajectory), mark)
  else marks.delete(nameOf(trajectory))
  writeMarks()
}

// The values of a trajectory in the filter "marks".
function marksOf(trajectory) {
  const {selected, note} = markOf(trajectory)
  return [selected ? 'selected' : '', note ? 'with a note' : ''].filter(Boolean)
}

function makeMarkEditor(trajectory) {
  const mark = markOf(trajectory)
  const star = make('button', 'star', mark.selected ? '★ selected' : '☆ select')
  star.setAttribute('aria-pressed', mark.selected)
  onClick(star, () => {
    changeMark(trajectory, {selected: !markOf(trajectory).selected})
    applyFilters()
  })
  const note = make('input', 'note')
  note.value = mark.note
  note.placeholder = 'note'
  note.setAttribute('aria-label', 'note')
  note.onchange = () => {
    changeMark(trajectory, {note: note.value.trim()})
    offerValues('', [...trajectories.keys()])
    drawRows()
  }
  return make('div', 'marks', '', star, note)
}

// What the export writes about a trajectory. `file` and `line` locate its whole record.
function exported(i) {
  const trajectory = trajectories[i]
  const {run, file, line, env, seed, when, address, outcome, reason, success, score} = trajectory
  return {
    run: data.runs[run].name,
    ...{file, line, env, seed, when},
    group: trajectory.is_training ? address[1] : null,
    member: address[2],
    ...{outcome, reason, success, score},
    ...markOf(trajectory),
    system: data.texts[trajectory.system],
    turns: trajectory.turns.map(turn => ({
      observation: [turn.report, turn.budget, turn.board, turn.text].filter(Boolean).join('\n'),
      thought: turn.thought,
      reply: turn.tokens.map(id => data.texts[id]).join(''),
      actions: turn.actions,
      reward: turn.reward,
      faults: turn.faults,
      false_statements: (turn.marked_thought ?? []).filter(([, fact]) => fact),
    })),
  }
}

// Downloads the trajectories of the list, in its order, a line each.
function exportRows() {
  const lines = filtered.map(i => `${JSON.stringify(exported(i))}\n`)
  const url = URL.createObjectURL(new Blob(lines, {type: 'application/jsonl'}))
  const link = make('a')
  link.href = url
  link.download = `${data.runs.map(run => run.name.replaceAll('/', '_')).join('_')}_selection.jsonl`
  link.click()
  URL.revokeObjectURL(url)
}
