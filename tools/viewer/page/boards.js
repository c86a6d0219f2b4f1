// ---------- boards and actions

const ARROWS = new Map([['left', '←'], ['down', '↓'], ['right', '→'], ['up', '↑']])

// Only environments with boards have directions.
function hasBoards(env) {
  return Object.keys(data.cells[env]).length > 0
}

// An action with its arrow, such as '→ Right'.
function withArrow(env, action) {
  const arrow = hasBoards(env) && ARROWS.get(action.toLowerCase())
  return arrow ? `${arrow} ${action}` : action
}

// The arrow of an action, or its name.
function shorten(env, action) {
  return (hasBoards(env) && ARROWS.get(action.toLowerCase())) || action
}

// Draws a board as an SVG image, a unit square per cell.
function drawBoard(env, board) {
  const rows = board.split('\n').map(row => [...row])
  const svg = makeSvg('svg', {
    class: 'board',
    viewBox: `0 0 ${rows[0].length} ${rows.length}`,
    role: 'img',
    'aria-label': board,
  })
  rows.forEach((row, y) => {
    row.forEach((symbol, x) => {
      for (const layer of data.cells[env][symbol]) {
        for (const shape of data.layers[layer]) svg.append(drawShape(shape, x, y))
      }
    })
  })
  return svg
}

function drawShape(shape, x, y) {
  let node
  if ('radius' in shape) {
    node = makeSvg('circle', {cx: x + shape.x, cy: y + shape.y, r: shape.radius})
  } else {
    const points = shape.corners.map(([dx, dy]) => `${x + dx},${y + dy}`)
    node = makeSvg('polygon', {points: points.join(' ')})
  }
  node.style.fill = node.style.stroke = `var(--${shape.color})`
  return node
}

// The actions of a turn in a line of a card. A slip shows both moves: →⤳↓.
function summarize(env, turn) {
  const parts = turn.actions.map((action, k) => {
    const short = shorten(env, action)
    return isSlip(turn, k) ? `${short}⤳${shorten(env, turn.moves[k])}` : short
  })
  return parts.join(' ') || '–'
}

// An action as a chip: what the policy chose, and what took place if that differs.
function makeAction(env, turn, k) {
  const chosen = withArrow(env, turn.actions[k])
  if (!isExecuted(turn, k)) {
    const chip = make('span', 'action not-executed', '', makeMarked('s', '', chosen))
    chip.append(gray(' not executed'))
    return chip
  }
  const chip = make('span', 'action', '', makeMarked('span', 'chosen', chosen))
  if (isSlip(turn, k)) {
    chip.classList.add('slip')
    chip.title = 'chance replaced the chosen move'
    chip.append(make('span', 'actual', `⤳ slipped ${withArrow(env, turn.moves[k])}`))
  }
  return chip
}
