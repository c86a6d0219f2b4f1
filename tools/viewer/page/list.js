// ---------- the list, its filters and its order

// Name of a filter -> the values that a trajectory has in it. The names are ids of <select>s.
const FILTERS = {
  outcome: trajectory => [trajectory.success ? 'success' : 'no success', trajectory.outcome],
  replies: trajectory => trajectory.replies,
  iteration: trajectory => (trajectory.policy ? [] : [trajectory.when]),
  policy: trajectory => (trajectory.policy ? [trajectory.policy] : []), // only in files
  group: trajectory => [trajectory.group],
  training: trajectory => {
    if (trajectory.kept === null) return []
    return [trajectory.kept ? 'kept by the filter' : 'dropped by the filter']
  },
  marks: trajectory => marksOf(trajectory),
  environment: trajectory => [trajectory.env],
  run: trajectory => [data.runs[trajectory.run].name],
  comparison: trajectory => (trajectory.comparison ? [trajectory.comparison] : []),
}
// Name of an order -> a number by which it sorts, smallest first.
const ORDERS = {
  'in order of training': (_, i) => i,
  'lowest score first': trajectory => trajectory.score,
  'highest score first': trajectory => -trajectory.score,
  'longest first': trajectory => -trajectory.length,
  'shortest first': trajectory => trajectory.length,
  'most surprising first': trajectory => -trajectory.surprise,
  'least surprising first': trajectory => trajectory.surprise,
}
const FIRST_ORDER = 'in order of training'
const ROW_HEIGHT = 54 // pixels of a trajectory in the list
const MAX_ROWS = 60 // rows of the list that exist in the page; blank space stands for the others

const texts = new Map() // number of a trajectory -> the texts of its turns, for the search

function makeFilters() {
  for (const name of [...Object.keys(FILTERS), 'order']) {
    const select = make('select')
    select.id = name
    select.onchange = () => {
      select.blur() // so that the arrow keys change the turn again
      applyFilters(name)
    }
    const label = make('label', '', name)
    label.htmlFor = name
    element('filters').append(label, select)
  }
  element('order').append(...Object.keys(ORDERS).map(name => new Option(name)))
  element('search').oninput = () => applyFilters('search')
}

function searchQuery() {
  return element('search').value.trim().toLowerCase()
}

// The turns of trajectory i in which the search finds something.
function matches(i, query) {
  if (!texts.has(i)) texts.set(i, trajectories[i].turns.map(searchText))
  return [...texts.get(i).keys()].filter(k => texts.get(i)[k].includes(query))
}

function passes(trajectory, wanted, ignoredFilter) {
  return wanted.every(([name, value]) => {
    return name === ignoredFilter || FILTERS[name](trajectory).includes(value)
  })
}

function chosenFilters() {
  const names = Object.keys(FILTERS).filter(name => element(name).value)
  return names.map(name => [name, element(name).value])
}

// Offers in each filter the values that the other filters leave. A choice that is no longer
// possible is reset; the filter that the user just changed comes last, so it keeps its choice.
function offerValues(changed, found) {
  const names = Object.keys(FILTERS).filter(name => name !== changed)
  if (changed in FILTERS) names.push(changed)
  for (const name of names) {
    const wanted = chosenFilters()
    const possible = found.filter(i => passes(trajectories[i], wanted, name))
    const values = [...new Set(possible.flatMap(i => FILTERS[name](trajectories[i])))]
    const select = element(name)
    const chosen = select.value
    select.replaceChildren(new Option('all', ''), ...values.map(value => new Option(value)))
    select.value = values.includes(chosen) ? chosen : ''
    // A filter that cannot tell trajectories apart is not shown.
    const isUseful = values.length > 1 || (values.length && ['replies', 'marks'].includes(name))
    select.hidden = select.previousSibling.hidden = !chosen && !isUseful
  }
}

// Filters and sorts the trajectories. The selected one stays if it passes and the order is kept.
function applyFilters(changed = '') {
  const query = searchQuery()
  const all = [...trajectories.keys()]
  const found = query ? all.filter(i => matches(i, query).length) : all
  offerValues(changed, found)
  const wanted = chosenFilters()
  const order = ORDERS[element('order').value]
  const keys = new Map(found.map(i => [i, order(trajectories[i], i)]))
  filtered = found.filter(i => passes(trajectories[i], wanted))
  filtered.sort((a, b) => keys.get(a) - keys.get(b) || a - b)
  showCount()
  const asksForTurn = ['search', 'replies'].includes(changed) && element(changed).value
  if (!filtered.length) show(selected, selectedTurn)
  else if (changed === 'order') show(filtered[0], firstMatch(filtered[0]))
  else if (!filtered.includes(selected)) show(filtered[0], firstMatch(filtered[0]))
  else show(selected, asksForTurn ? firstMatch(selected) : selectedTurn)
}

// The first turn that the search and the filter on replies find, otherwise the first turn.
function firstMatch(i) {
  const query = searchQuery()
  const isWanted = REPLY_FILTERS[element('replies').value] ?? (() => true)
  const turns = query ? matches(i, query) : [...trajectories[i].turns.keys()]
  return turns.find(k => isWanted(trajectories[i].turns[k])) ?? turns[0] ?? 0
}

function showCount() {
  const wins = filtered.filter(i => trajectories[i].success).length
  let text = `${filtered.length} of ${trajectories.length} trajectories, ${wins} successful`
  if (!filtered.length) text = 'no trajectory fits; change the search or the filters'
  element('count').textContent = text
}

// Puts the visible rows and a few more into the page, because thousands of rows would be slow.
function drawRows() {
  const first = Math.max(0, Math.floor(element('list').scrollTop / ROW_HEIGHT) - 5)
  const rows = element('rows')
  rows.style.height = `${filtered.length * ROW_HEIGHT}px`
  rows.style.paddingTop = `${first * ROW_HEIGHT}px`
  rows.replaceChildren(...filtered.slice(first, first + MAX_ROWS).map(makeRow))
}

function makeRow(i) {
  const trajectory = trajectories[i]
  const turns = trajectory.turns.length
  const {note, selected: isMarked} = markOf(trajectory)
  const mark = [isMarked ? '★' : '', note ? '✎' : ''].join('')
  const details = [mark, trajectory.member, trajectory.outcome, `${turns} turn${turns > 1 ? 's' : ''}`]
  if (compares) details.push(data.runs[trajectory.run].name)
  const about = gray(details.filter(Boolean).join(' · '), 'details')
  if (compares) about.prepend(make('i', `key run-${trajectory.run}`))
  const row = make(
    'div',
    i === selected ? 'row selected' : 'row',
    '',
    makeIcon(trajectory),
    make('span', 'row-name', trajectory.group),
    gray(formatNumber(trajectory.score), 'number'),
    about,
    gray(i, 'number'),
  )
  return onClick(row, () => show(i, firstMatch(i)))
}

function scrollToSelected() {
  const place = filtered.indexOf(selected)
  if (place < 0) return
  const list = element('list')
  const top = place * ROW_HEIGHT
  const lowest = top + ROW_HEIGHT - list.clientHeight
  list.scrollTop = Math.min(top, Math.max(list.scrollTop, lowest))
}
