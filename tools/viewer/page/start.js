// ---------- start

const TYPING_MS = 4000 // no reload in this time after the last key: somebody may be typing
let followPaused = false
let lastTyped = 0

function setColors() {
  for (const [name, color] of Object.entries(data.colors)) {
    const value = `light-dark(${color.light}, ${color.dark})`
    document.documentElement.style.setProperty(`--${name}`, value)
  }
}

function toggleTheme() {
  const style = document.documentElement.style
  const preferred = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'
  const current = style.colorScheme || preferred
  style.colorScheme = current === 'dark' ? 'light' : 'dark'
}

function handleKey(event) {
  lastTyped = Date.now()
  if (event.ctrlKey || event.metaKey || event.altKey) return
  if (event.target.matches('input') && event.key === 'Escape') event.target.blur()
  if (event.target.matches('select, input')) return
  const place = filtered.indexOf(selected)
  const go = i => show(i, firstMatch(i))
  const actions = {
    ArrowLeft: () => show(selected, selectedTurn - 1),
    ArrowRight: () => show(selected, selectedTurn + 1),
    ArrowUp: () => go(filtered[place - 1] ?? selected),
    ArrowDown: () => go(filtered[place + 1] ?? selected),
    '/': () => element('search').focus(),
  }
  const action = actions[event.key]
  if (!action) return
  event.preventDefault() // no scrolling
  action()
}

// While a run goes on, the page is loaded again. It keeps its place, because the address names it.
function followRun() {
  if (!data.refresh_s) return
  const note = element('follow')
  const button = onClick(make('button'), () => {
    followPaused = !followPaused
    writeLink()
    tell()
  })
  const tell = () => {
    note.firstChild.textContent = followPaused ? 'paused ' : `following, ${data.written} `
    button.textContent = followPaused ? 'follow' : 'pause'
  }
  note.append(make('span'), button)
  note.hidden = false
  tell()
  setInterval(() => {
    const isWriting = document.activeElement.matches('.note')
    const isBusy = document.hidden || isWriting || Date.now() - lastTyped < TYPING_MS
    if (followPaused || isBusy || String(getSelection())) return
    const place = {
      main: document.querySelector('main').scrollTop,
      theme: document.documentElement.style.colorScheme,
    }
    history.replaceState(place, '', `#${describePlace()}`)
    location.reload()
  }, 1000 * data.refresh_s)
}

function restorePlace() {
  if (!history.state) return
  document.documentElement.style.colorScheme = history.state.theme
  document.querySelector('main').scrollTop = history.state.main
}

element('name').append(...data.runs.map((run, number) => makeRunName(number)))
document.title = data.runs.map(run => run.name).join(' and ')
element('filter-box').open = innerWidth > 800
setColors()
prepare()
makeFilters()
makeCurveChoice()
readLink()
followRun()
restorePlace()
element('list').onscroll = drawRows
element('theme').onclick = toggleTheme
element('export').onclick = exportRows
document.onkeydown = handleKey
addEventListener('hashchange', readLink)
addEventListener('resize', drawStrip)
