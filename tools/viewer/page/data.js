// ---------- the data of the page, and what is selected

const data = JSON.parse(document.getElementById('data').textContent)
const trajectories = data.trajectories
const compares = data.runs.length > 1

let selected = 0 // number of the trajectory that is shown
let selectedTurn = 0
let filtered = [] // numbers of the trajectories that pass the filters, in the chosen order

// Name of a filter on replies -> whether a turn passes it.
const REPLY_FILTERS = {
  'an invalid reply': turn => turn.faults.length > 0,
  'a reply that was cut off': turn => turn.cut !== '',
  'a slip': turn => hasSlip(turn),
  'a false statement': turn => turn.statements[0] > turn.statements[1],
}

function hasSlip(turn) {
  return turn.actions.some((action, k) => isSlip(turn, k))
}

// An action that was not executed has the move ''. Old records have no moves.
function isSlip(turn, k) {
  return Boolean(turn.moves && turn.moves[k] && turn.moves[k] !== turn.actions[k])
}

function isExecuted(turn, k) {
  return !turn.moves || turn.moves[k] !== ''
}

function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0)
}

// Number of sampled tokens. A reply of a player counts as one.
function lengthOf(trajectory) {
  return sum(trajectory.turns.map(turn => turn.tokens.length))
}

// Mean surprise of the sampled tokens in 1/100 nat; -1 without any.
function surpriseOf(trajectory) {
  const surprises = trajectory.turns.flatMap(turn => turn.surprise)
  return surprises.length ? sum(surprises) / surprises.length : -1
}

// The text of a turn that the search goes through.
function searchText(turn) {
  return [turn.thought, turn.reply, ...turn.actions].join('\n').toLowerCase()
}

// Trajectories of both runs that start like trajectory i, in the order of the runs.
function prompted(i) {
  return byPrompt.get(trajectories[i].prompt)
}

// The trajectory of the other run that is shown beside trajectory i: the same prompt and, if there
// is one, the same stage and member. Members with the same number have the same transition noise.
function counterpart(i) {
  const own = trajectories[i]
  const others = prompted(i).filter(k => trajectories[k].run !== own.run)
  const closeness = k => {
    const other = trajectories[k]
    return 2 * (other.when === own.when) + (other.address[2] === own.address[2])
  }
  return others.sort((a, b) => closeness(b) - closeness(a) || a - b)[0]
}

// How the two runs did on the prompt of a trajectory, as a value of the filter "comparison".
function comparison(i) {
  const other = counterpart(i)
  if (other === undefined) return 'no common prompt'
  const wins = [false, false]
  for (const k of [i, other]) wins[trajectories[k].run] = trajectories[k].success
  if (wins[0] && wins[1]) return 'both succeed'
  if (!wins[0] && !wins[1]) return 'neither succeeds'
  return `only ${data.runs[wins[0] ? 0 : 1].name} succeeds`
}

const byPrompt = new Map() // number of a prompt -> numbers of its trajectories

function prepare() {
  trajectories.forEach((trajectory, i) => {
    if (!byPrompt.has(trajectory.prompt)) byPrompt.set(trajectory.prompt, [])
    byPrompt.get(trajectory.prompt).push(i)
  })
  trajectories.forEach((trajectory, i) => {
    trajectory.replies = Object.keys(REPLY_FILTERS).filter(name => {
      return trajectory.turns.some(REPLY_FILTERS[name])
    })
    trajectory.length = lengthOf(trajectory)
    trajectory.surprise = surpriseOf(trajectory)
    if (compares) trajectory.comparison = comparison(i)
  })
}
