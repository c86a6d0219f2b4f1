// ---------- links: the address of the page names what it shows

const LINK_DELAY_MS = 150 // browsers refuse many changes of the address in a second
let linkTimer = 0
let linkParameters = new URLSearchParams() // those of the newest link that was written

function writeLink() {
  clearTimeout(linkTimer)
  linkTimer = setTimeout(() => {
    linkParameters = describePlace()
    history.replaceState(history.state, '', `#${linkParameters}`)
  }, LINK_DELAY_MS)
}

function describePlace() {
  const trajectory = trajectories[selected]
  const [iteration, group, member] = trajectory.address
  const place = new URLSearchParams({run: data.runs[trajectory.run].name, iteration, group, member})
  place.set('turn', selectedTurn + 1)
  if (Object.keys(data.cells).length > 1) place.set('environment', trajectory.env)
  for (const [name, value] of chosenFilters()) place.set(`only-${name}`, value)
  if (element('search').value) place.set('search', element('search').value)
  if (element('order').value !== FIRST_ORDER) place.set('order', element('order').value)
  if (element('curve').selectedIndex > 0) place.set('curve', element('curve').value)
  if (followPaused) place.set('follow', 'paused')
  return place
}

// Shows what the address names. Without a trajectory in it, the first one is shown.
function readLink() {
  const place = new URLSearchParams(location.hash.slice(1))
  element('search').value = place.get('search') ?? ''
  choose('order', place.get('order') ?? FIRST_ORDER)
  choose('curve', place.get('curve') ?? element('curve').options[0]?.value)
  for (const name of Object.keys(FILTERS)) {
    const value = place.get(`only-${name}`) ?? ''
    if (value) element(name).append(new Option(value))
    element(name).value = value
  }
  followPaused = place.get('follow') === 'paused'
  applyFilters()
  if (!place.has('iteration')) return
  const named = trajectories.findIndex(trajectory => isNamed(trajectory, place))
  if (named >= 0) {
    show(named, (Number(place.get('turn')) || 1) - 1)
  } else {
    element('notice').textContent = 'The link names a trajectory that this page does not hold.'
    element('notice').hidden = false
  }
}

function isNamed(trajectory, place) {
  const [iteration, group, member] = trajectory.address
  const agrees = (name, value) => !place.has(name) || place.get(name) === value
  return (
    agrees('run', data.runs[trajectory.run].name) &&
    agrees('iteration', iteration) &&
    agrees('group', group) &&
    agrees('member', member) &&
    agrees('environment', trajectory.env)
  )
}

function choose(id, value) {
  const select = element(id)
  if ([...select.options].some(option => option.value === value)) select.value = value
}
