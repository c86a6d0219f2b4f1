// ---------- the selected trajectory, and its counterpart in another run

const MAX_NATS = 3 // a token of this surprise has the full color
const EXPLAINED = {
  reward: 'of this turn, format penalty included',
  advantage: 'mean over the tokens of the reply, as the update used it',
  value: 'what the critic expected before the reply',
}

// Shows a turn of trajectory i. An index before the first or after the last turn is clamped.
function show(i, turnIndex = 0) {
  const trajectory = trajectories[i]
  selected = i
  selectedTurn = Math.max(0, Math.min(turnIndex, trajectory.turns.length - 1))
  element('notice').hidden = true
  scrollToSelected()
  drawRows()
  element('panes').replaceChildren(...makePanes(i))
  element('system').textContent = data.texts[trajectory.system]
  showGroup(i)
  drawStrip()
  writeLink()
}

function makePanes(i) {
  if (!compares) return [makePane(i, selectedTurn)]
  const panes = [null, null]
  const other = counterpart(i)
  panes[trajectories[i].run] = makePane(i, selectedTurn)
  if (other !== undefined) {
    panes[trajectories[other].run] = makePane(other, selectedTurn)
  } else {
    const run = 1 - trajectories[i].run
    const note = gray('This run has no recorded trajectory from the same start.')
    panes[run] = make('article', 'pane', '', makeRunName(run), note)
  }
  return panes
}

function makeRunName(run) {
  const key = make('i', `key run-${run}`)
  return make('div', 'run-name', '', key, data.runs[run].name)
}

// A trajectory and one of its turns. A trajectory that ended before that turn shows its last turn.
function makePane(i, turnIndex) {
  const trajectory = trajectories[i]
  const last = trajectory.turns.length - 1
  const index = Math.min(turnIndex, last)
  const turn = trajectory.turns[index]
  const pane = make('article', compares && i === selected ? 'pane selected' : 'pane')
  if (compares) pane.append(makeRunName(trajectory.run))
  pane.append(
    makeTitle(trajectory),
    make('div', 'turns', '', ...trajectory.turns.map((t, k) => makeTurnButton(i, k, index))),
  )
  if (turnIndex > last) pane.append(gray(`It ended at turn ${last + 1}.`, 'ended-note'))
  const tokens = make('section', 'tokens-box', '', make('h3', '', 'Sampled tokens'))
  tokens.append(makeTokens(turn), makeLegend())
  const {env} = trajectory
  pane.append(make('div', 'turn', '', makeObservation(env, turn), makeReply(env, turn)), tokens)
  return pane
}

function makeTitle(trajectory) {
  const name = `${trajectory.group}, ${trajectory.member}`
  const outcome = make('span', 'outcome', '', makeIcon(trajectory), trajectory.outcome)
  if (trajectory.success) outcome.classList.add('success')
  const about = make('div', 'about gray', '', outcome)
  if (trajectory.reason) about.append(make('span', '', trajectory.reason))
  about.append(make('span', '', `score ${formatNumber(trajectory.score)}`))
  about.append(make('span', 'env', trajectory.env))
  return make('div', 'pane-head', '', make('h2', 'title', name), about, makeMarkEditor(trajectory))
}

function makeTurnButton(i, k, shownIndex) {
  const turn = trajectories[i].turns[k]
  const button = make('button', k === shownIndex ? 'selected' : '', `turn ${k + 1} `)
  button.append(gray(formatNumber(turn.reward)))
  const notes = []
  if (turn.faults.length) {
    button.append(make('b', 'mark', '!'))
    notes.push('the reply is not valid')
  }
  if (turn.cut) notes.push('the reply was cut off')
  if (hasSlip(turn)) {
    button.append(make('b', 'mark', '⤳'))
    notes.push('a move slipped')
  }
  if (turn.advantage !== undefined) {
    button.append(makeAdvantageBar(i, turn.advantage))
    notes.push(`advantage ${formatSigned(turn.advantage)}`)
  }
  button.title = notes.join(', ')
  return onClick(button, () => show(i, k))
}

// A bar from the middle: to the right for a positive advantage, to the left for a negative one. The
// largest advantage in the group has the full length.
function makeAdvantageBar(i, advantage) {
  const members = prompted(i).flatMap(k => trajectories[k].turns)
  const largest = Math.max(...members.map(turn => Math.abs(turn.advantage ?? 0)), 1e-9)
  const percent = (50 * Math.abs(advantage)) / largest
  const bar = make('i', advantage < 0 ? 'bar negative' : 'bar')
  const fill = make('i')
  fill.style.width = `${percent}%`
  bar.append(fill)
  return bar
}

function makeObservation(env, turn) {
  const box = make('section', 'observation')
  const boards = make('div', 'boards')
  if (turn.board) boards.append(makeFigure(turn.final_board ? 'before' : '', env, turn.board))
  if (turn.final_board) boards.append(makeFigure('at the end', env, turn.final_board))
  if (turn.board || turn.final_board) box.append(boards)
  if (turn.text) box.append(make('pre', 'text', turn.text))
  if (!turn.final_board && turn.final_text) {
    box.append(make('h3', '', 'At the end'), make('pre', 'text final', turn.final_text))
  }
  box.append(make('p', 'progress gray', [turn.budget, turn.report].filter(Boolean).join('. ')))
  return box
}

function makeFigure(caption, env, board) {
  const figure = make('figure', caption === 'at the end' ? 'final' : '', '', drawBoard(env, board))
  if (caption) figure.append(make('figcaption', 'gray', caption))
  return figure
}

function makeReply(env, turn) {
  const box = make('section', 'reply')
  if (turn.reply) {
    box.append(make('h3', '', 'Reply'), makeMarked('pre', 'raw', turn.reply))
  } else {
    box.append(make('h3', '', 'Thought'), makeThought(turn))
  }
  box.append(make('h3', '', 'Answer'))
  const actions = turn.actions.map((_, k) => makeAction(env, turn, k))
  box.append(make('div', 'answer', '', ...(actions.length ? actions : ['–'])))
  box.append(make('h3', '', 'Outcome'), makeOutcome(turn))
  return box
}

// The thought; sentences that were found false are struck out.
function makeThought(turn) {
  if (!turn.marked_thought) return makeMarked('div', 'thought', turn.thought || '–')
  const parts = turn.marked_thought.map(([text, fact]) => {
    const part = makeMarked(fact ? 's' : 'span', '', text)
    if (fact) part.title = `false; the fact: ${fact}`
    return part
  })
  return make('div', 'thought', '', ...parts)
}

// Which sentences were checked and which were false. Most sentences of a free thought are not
// checked, because they do not begin like a fact of the environment.
function makeStatements(turn) {
  const [checked, right] = turn.statements
  const box = make('div', 'statements')
  const sentences = turn.sentences === 1 ? 'sentence' : 'sentences'
  if (checked < turn.sentences) {
    const text = `${turn.sentences - checked} of ${turn.sentences} ${sentences} not checked`
    box.append(gray(text))
  }
  const wrong = (turn.marked_thought ?? []).filter(([, fact]) => fact)
  const list = wrong.map(([text, fact]) => {
    return make('li', '', '', make('s', '', text.trim()), ' the fact: ', make('b', '', fact))
  })
  if (right < checked && !list.length) box.append(gray('The record does not name what was false.'))
  if (list.length) box.append(make('ul', 'faults', '', ...list))
  return box
}

function makeOutcome(turn) {
  const facts = make('div', 'facts')
  for (const name of ['reward', 'advantage', 'value']) {
    if (turn[name] === undefined) continue
    const number = name === 'advantage' ? formatSigned(turn[name]) : formatNumber(turn[name])
    const fact = make('span', `fact ${name}`, '', gray(name), ' ', make('b', '', number))
    fact.title = EXPLAINED[name]
    facts.append(fact)
  }
  const [checked, right] = turn.statements
  if (checked) {
    const count = make('b', '', `${right} of ${checked}`)
    facts.append(make('span', 'fact', '', gray('true statements'), ' ', count))
  }
  const box = make('div', 'result', '', facts)
  if (turn.sentences) box.append(makeStatements(turn))
  if (turn.faults.length) {
    const list = make('ul', 'faults', '', ...turn.faults.map(fault => make('li', '', fault)))
    box.append(make('div', 'invalid', '', make('b', '', '! not valid'), list))
  } else {
    facts.append(make('span', 'fact valid', '✓ valid'))
    if (turn.cut) facts.append(make('span', 'fact cut', turn.cut))
  }
  return box
}

function makeTokens(turn) {
  return make('pre', 'tokens', '', ...turn.tokens.map((id, k) => makeToken(id, turn.surprise[k])))
}

// Colors a token by its surprise, in 1/100 nat. A token that was not sampled has none (undefined).
function makeToken(textId, surprise) {
  const token = make('span', '', data.texts[textId])
  if (surprise === undefined) {
    token.title = 'not sampled'
    return token
  }
  const nats = surprise / 100
  const percent = Math.min(100, (100 * nats) / MAX_NATS)
  token.title = `${nats.toFixed(2)} nats`
  token.style.background = `color-mix(in srgb, var(--surprise) ${percent}%, transparent)`
  return token
}

function makeLegend() {
  const text = 'surprise, −log p of the sampled token: 0 '
  return make('div', 'gray', text, make('i', 'legend'), ` ${MAX_NATS} nats or more`)
}

// ---------- the trajectories from the same start

function showGroup(i) {
  const all = prompted(i)
  const own = all.filter(k => trajectories[k].run === trajectories[i].run)
  const number = `${own.length} ${own.length === 1 ? 'trajectory' : 'trajectories'}`
  let members = trajectories[i].is_training ? `Group of ${own.length}` : `Same prompt, ${number}`
  if (compares) members = 'Same start'
  element('members').textContent = `${members}, turn ${selectedTurn + 1}`
  element('filter-note').textContent = compares ? '' : trajectories[i].filter
  const cards = []
  data.runs.forEach((_, run) => {
    const members = all.filter(k => trajectories[k].run === run)
    if (!members.length) return
    const note = trajectories[members[0]].filter
    if (compares) cards.push(make('div', 'cards-head', '', makeRunName(run), gray(note)))
    cards.push(...members.map(makeCard))
  })
  element('cards').replaceChildren(...cards)
}

// Makes a card of trajectory i. If it ended before the selected turn, the card is pale and shows
// the last turn.
function makeCard(i) {
  const trajectory = trajectories[i]
  const turn = trajectory.turns[selectedTurn] || trajectory.turns.at(-1)
  const ended = selectedTurn >= trajectory.turns.length
  const card = make('div', 'card')
  if (i === selected) card.classList.add('selected')
  if (ended) card.classList.add('ended')
  const score = gray(formatNumber(trajectory.score))
  card.append(make('div', 'card-head', '', makeIcon(trajectory), trajectory.member, score))
  if (turn.board) card.append(drawBoard(trajectory.env, turn.board))
  else card.append(make('pre', '', turn.thought || turn.reply || turn.text))
  card.append(gray(summarize(trajectory.env, turn), 'answer-line'))
  if (turn.advantage !== undefined) card.append(makeAdvantageBar(i, turn.advantage))
  if (ended) card.append(gray(`ended at turn ${trajectory.turns.length}`, 'ended-note'))
  return onClick(card, () => show(i, selectedTurn))
}
