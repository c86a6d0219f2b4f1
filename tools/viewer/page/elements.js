// ---------- building elements

function element(id) {
  return document.getElementById(id)
}

// Makes an element with a text (as a text node, whatever it contains) and children.
function make(tag, className = '', text = '', ...children) {
  const node = document.createElement(tag)
  if (className) node.className = className
  node.textContent = text
  node.append(...children)
  return node
}

function makeSvg(tag, attributes, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag)
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value)
  node.append(...children)
  return node
}

function onClick(node, action) {
  node.onclick = action
  return node
}

function gray(text, className = '') {
  return make('span', `gray ${className}`, text)
}

// A number with a true minus sign, such as −0.10.
function formatNumber(number, digits = 2) {
  const rounded = Math.abs(number).toFixed(digits)
  return (number < 0 && Number(rounded) ? '−' : '') + rounded
}

function formatSigned(number) {
  const text = formatNumber(number)
  return number > 0 && Number(text) ? `+${text}` : text
}

// Outcomes differ in shape, so that they can be told apart without color. Records with 'failure'
// do not tell whether the game was lost.
const ICONS = {
  success: 'M4.6 8.3l2.4 2.5 4.5-5.4',
  lost: 'M5.4 5.4l5.2 5.2M10.6 5.4l-5.2 5.2',
  failure: 'M5.4 5.4l5.2 5.2M10.6 5.4l-5.2 5.2',
  'out of actions': 'M4.8 8h6.4',
  'out of turns': 'M8 4.3V8l2.6 1.6',
  'out of tokens': 'M4.7 8h.1M8 8h.1M11.3 8h.1',
  error: 'M8 5v4M8 11.2v.1',
}

function makeIcon(trajectory) {
  const {outcome, success} = trajectory
  const className = success ? 'icon success' : 'icon'
  const frame = outcome === 'error'
    ? makeSvg('path', {class: 'frame', d: 'M8 1.2L15 14H1z'})
    : makeSvg('circle', {class: 'frame', cx: 8, cy: 8, r: 6.9})
  const sign = makeSvg('path', {class: 'sign', d: ICONS[outcome]})
  const attributes = {class: className, viewBox: '0 0 16 16', role: 'img', 'aria-label': outcome}
  return makeSvg('svg', attributes, frame, sign)
}

// A text whose parts that match the search are marked.
function makeMarked(tag, className, text) {
  const node = make(tag, className)
  const query = searchQuery()
  const lower = text.toLowerCase()
  let end = 0
  // A few letters change their length in lower case. Then nothing is marked.
  for (let at = -1; query && lower.length === text.length; ) {
    at = lower.indexOf(query, end)
    if (at < 0) break
    node.append(text.slice(end, at), make('mark', '', text.slice(at, at + query.length)))
    end = at + query.length
  }
  node.append(text.slice(end))
  return node
}
