// ---------- the curves above: a click on an iteration opens its trajectories

const STRIP = {height: 124, left: 46, top: 12, bottom: 26, end: 34}
const PERCENT = ['success', 'valid_frac'] // metrics that are shown in %, from 0 to 100

function makeCurveChoice() {
  const labels = new Map(data.runs.flatMap(run => {
    return Object.entries(run.curves).map(([key, curve]) => [key, curve.label])
  }))
  const select = element('curve')
  select.append(...[...labels].map(([key, label]) => new Option(label, key)))
  select.hidden = labels.size < 2
  select.onchange = () => {
    select.blur()
    drawStrip()
    writeLink()
  }
}

// Where things are in the strip, in pixels.
function layOutStrip(key) {
  const width = element('strip').clientWidth
  const right = width - (width < 600 ? 80 : 118) // room for the names of curves
  const bottom = STRIP.height - STRIP.bottom
  const lastStep = Math.max(1, ...data.runs.map(run => run.steps.at(-1) ?? 0))
  const numbers = data.runs.flatMap(run => pointsOf(run, key).map(point => point[1]))
  let [low, high] = [Math.min(...numbers), Math.max(...numbers)]
  if (PERCENT.includes(key)) [low, high] = [0, 1]
  if (low === high) [low, high] = [low - 1, high + 1]
  const scale = (right - STRIP.end - STRIP.left) / lastStep
  return {
    width, right, bottom, lastStep, low, high,
    labels: [], // heights at which names of lines stand
    x: step => STRIP.left + step * scale,
    y: value => bottom - ((value - low) / (high - low)) * (bottom - STRIP.top),
  }
}

// [iteration, value] of each measured value of a curve.
function pointsOf(run, key) {
  const values = run.curves[key]?.values ?? []
  return run.steps.map((step, k) => [step, values[k]]).filter(point => point[1] != null)
}

// The x position of a recorded stage: 'after RL' is at the right of the last iteration.
function stageX(stage, place) {
  if (stage === 'before RL') return place.x(0)
  if (stage === 'after RL') return place.right
  return place.x(Number(stage.replace('iteration ', '')))
}

function recordedStages() {
  const ofRuns = trajectories.filter(trajectory => !trajectory.policy)
  return [...new Set(ofRuns.map(trajectory => trajectory.when))]
}

function drawStrip() {
  const strip = element('strip')
  const key = element('curve').value
  strip.hidden = !key
  if (!key) return
  const place = layOutStrip(key)
  const svg = makeSvg('svg', {width: place.width, height: STRIP.height, role: 'img'})
  svg.setAttribute('aria-label', `${element('curve').selectedOptions[0].text} over the iterations`)
  drawAxes(svg, place, key)
  if (key === 'success') drawPlayers(svg, place)
  data.runs.forEach((run, number) => drawCurve(svg, place, key, run, number))
  drawStages(svg, place)
  const guide = makeSvg('line', {class: 'guide', y1: STRIP.top, y2: place.bottom})
  guide.setAttribute('visibility', 'hidden')
  svg.append(guide)
  svg.onmousemove = event => showTip(event, place, key, guide)
  svg.onmouseleave = () => {
    guide.setAttribute('visibility', 'hidden')
    strip.querySelector('.tip').hidden = true
  }
  svg.onclick = event => jump(nearestStage(event.offsetX, place))
  const tip = make('div', 'tip')
  tip.hidden = true
  strip.replaceChildren(svg, tip)
}

function addText(svg, x, y, text, anchor = 'start', className = '') {
  svg.append(makeSvg('text', {x, y, 'text-anchor': anchor, class: className}, text))
}

function formatValue(value, key) {
  if (PERCENT.includes(key)) return `${Math.round(100 * value)} %`
  return formatNumber(value, Math.abs(value) < 10 ? 2 : 0)
}

function drawAxes(svg, place, key) {
  for (const share of [0, 0.5, 1]) {
    const value = place.low + share * (place.high - place.low)
    const y = place.y(value)
    svg.append(makeSvg('line', {class: 'grid', x1: STRIP.left, x2: place.right, y1: y, y2: y}))
    addText(svg, STRIP.left - 8, y + 4, formatValue(value, key), 'end')
  }
  const y = STRIP.height - 5
  const every = [1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000, 1e9].find(step => {
    return place.x(step) - place.x(0) >= 52
  })
  for (let step = every; step <= place.lastStep; step += every) {
    const isFree = place.x(step) > STRIP.left + 62 && place.x(step) < place.right - 58
    if (isFree) addText(svg, place.x(step), y, step, 'middle')
  }
  if (recordedStages().includes('before RL')) addText(svg, STRIP.left - 4, y, 'before RL')
  if (recordedStages().includes('after RL')) addText(svg, place.right + 4, y, 'after RL', 'end')
}

// If evaluations are known, their line has dots, and the line of the training rollouts is thin.
function drawCurve(svg, place, key, run, number) {
  const points = pointsOf(run, key)
  const evaluated = key === 'success' ? run.eval : []
  const className = `run-${number}`
  const thin = evaluated.length ? ' faint' : ''
  drawLine(svg, place, points, `line ${className}${thin}`)
  drawLine(svg, place, evaluated, `line ${className}`)
  for (const [step, value] of evaluated) {
    const attributes = {class: `dot ${className}`, cx: place.x(step), cy: place.y(value), r: 2.5}
    svg.append(makeSvg('circle', attributes))
  }
  if (compares) {
    labelLine(svg, place, [...points, ...evaluated], run.name, `name ${className}`)
  } else if (evaluated.length) {
    labelLine(svg, place, evaluated, 'evaluation', `name ${className}`)
    labelLine(svg, place, points, 'training', '')
  }
}

function drawLine(svg, place, points, className) {
  const corners = points.map(([step, value]) => `${place.x(step)},${place.y(value)}`)
  svg.append(makeSvg('polyline', {class: className, points: corners.join(' ')}))
}

// Writes a name behind the last point of a line.
function labelLine(svg, place, points, name, className) {
  if (!points.length) return
  const length = place.width < 600 ? 10 : 16
  const cut = name.length > length ? `${name.slice(0, length - 1)}…` : name
  const y = freeY(place, place.y(points.at(-1)[1]) + 4)
  addText(svg, place.right + 6, y, cut, 'start', className)
}

// A height for a label at which no other label stands.
function freeY(place, y) {
  while (place.labels.some(other => Math.abs(other - y) < 11)) y += 2
  place.labels.push(y)
  return y
}

function drawPlayers(svg, place) {
  const players = new Map(data.runs.flatMap(run => run.players))
  for (const [name, rate] of [...players].sort((a, b) => b[1] - a[1])) {
    const y = place.y(rate)
    svg.append(makeSvg('line', {class: 'player', x1: STRIP.left, x2: place.right, y1: y, y2: y}))
    const words = place.width < 600 ? name : `${name} player`
    addText(svg, place.right + 6, freeY(place, y + 4), words, 'start')
  }
}

// Draws a mark for each stage that has trajectories: an iteration, before RL or after RL.
function drawStages(svg, place) {
  const chosen = trajectories[selected].when
  for (const stage of recordedStages()) {
    const x = stageX(stage, place)
    const isChosen = stage === chosen
    if (isChosen) {
      const ends = {x1: x, x2: x, y1: STRIP.top - 4, y2: place.bottom}
      svg.append(makeSvg('line', {class: 'chosen', ...ends}))
    }
    const attributes = {class: isChosen ? 'stage chosen' : 'stage', cx: x, cy: place.bottom, r: 4}
    svg.append(makeSvg('circle', attributes))
  }
}

function nearestStage(x, place) {
  const distance = stage => Math.abs(stageX(stage, place) - x)
  return recordedStages().reduce((a, b) => (distance(b) < distance(a) ? b : a))
}

// Shows the values at the pointer, and which trajectories a click opens.
function showTip(event, place, key, guide) {
  const stage = nearestStage(event.offsetX, place)
  const scale = place.x(1) - place.x(0)
  const step = Math.round((event.offsetX - STRIP.left) / scale)
  const parts = []
  if (step >= 1 && step <= place.lastStep) {
    const values = data.runs.map(run => {
      const point = pointsOf(run, key).find(([of]) => of === step)
      if (!point) return ''
      return `${compares ? `${run.name} ` : ''}${formatValue(point[1], key)}`
    })
    parts.push(`iteration ${step}: ${values.filter(Boolean).join(', ') || 'no value'}`)
  }
  parts.push(`a click opens ${stage}`)
  const tip = element('strip').querySelector('.tip')
  tip.textContent = parts.join(' · ')
  tip.hidden = false
  tip.style.left = `${Math.min(event.offsetX + 10, place.width - tip.offsetWidth - 8)}px`
  const x = stageX(stage, place)
  guide.setAttribute('x1', x)
  guide.setAttribute('x2', x)
  guide.setAttribute('visibility', 'visible')
}

// Shows the trajectories of a stage only.
function jump(stage) {
  const offers = () => [...element('iteration').options].some(option => option.value === stage)
  if (!offers()) {
    clearFilters()
    offerValues('', [...trajectories.keys()])
  }
  element('group').value = ''
  element('iteration').value = stage
  applyFilters('iteration')
}

function clearFilters() {
  element('search').value = ''
  for (const name of Object.keys(FILTERS)) element(name).value = ''
}
