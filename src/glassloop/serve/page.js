
const at = (id) => document.getElementById(id)
const made = (tag, text) => { const one = document.createElement(tag); one.textContent = text; return one }
const headers = () => {
  const found = {"content-type": "application/json"}
  if (at("key").value) found.authorization = "Bearer " + at("key").value
  return found
}
const prefix = () => at("model").value ? "/models/" + encodeURIComponent(at("model").value) : ""
async function load() {
  const answer = await fetch(prefix() + "/info", {headers: headers()})
  at("key-row").hidden = answer.status !== 401 && !at("key").value
  if (!answer.ok) return
  const info = await answer.json()
  if (!at("model").options.length) for (const name of info.models) at("model").append(made("option", name))
  at("model-row").hidden = info.models.length < 2
  at("pair-row").hidden = info.pairs === false
}
async function ask(event) {
  event.preventDefault()
  const input = {text: at("text").value}
  if (!at("pair-row").hidden && at("pair").value) input.text_pair = at("pair").value
  for (const id of ["answer", "note", "scores", "tokens"]) at(id).replaceChildren()
  let answer, found
  try {
    answer = await fetch(prefix() + "/v1/predict", {
      method: "POST", headers: headers(), body: JSON.stringify({inputs: [input], tokens: true})})
    found = await answer.json()
  } catch (error) { at("note").textContent = "The server does not answer."; return }
  if (!answer.ok) { at("note").textContent = found.error; if (answer.status === 401) load(); return }
  const one = found.predictions[0]
  const label = Array.isArray(one.label) ? one.label.join(", ") || "no label" : String(one.label)
  at("answer").textContent = label
  const scores = Object.entries(one.probabilities || {}).sort((a, b) => b[1] - a[1])
  for (const [name, value] of scores) {
    const row = made("tr", ""), bar = document.createElement("meter"), cell = made("td", "")
    bar.value = value; cell.append(bar)
    row.append(made("td", name), made("td", value.toFixed(4)), cell); at("scores").append(row)
  }
  if (one.truncated) {
    const parts = [one.truncated.first && "first text", one.truncated.second && "second text"].filter(Boolean).join(" and ")
    at("note").textContent = `${one.truncated.tokens} tokens of the ${parts} were truncated.`
  }
  for (const token of one.tokens) at("tokens").append(made("span", token))
}
at("form").addEventListener("submit", ask)
at("model").addEventListener("change", load)
at("key").addEventListener("change", load)
load()
