"""The page of the server, where a person types a text or a pair and sees the answer, the scores and the tokens."""

from __future__ import annotations

import hashlib
from base64 import b64encode

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem }
textarea, input, select { width: 100%; box-sizing: border-box; font: inherit; padding: .4rem }
label { display: block; margin-top: .8rem }
button { margin-top: 1rem; font: inherit; padding: .4rem 1.2rem }
table { border-collapse: collapse; width: 100% } td { padding: .15rem .5rem .15rem 0 }
td:last-child { width: 55% } meter { width: 100% }
#answer { font-size: 1.4rem; font-weight: 600 } .note { color: #a33 }
#tokens span { display: inline-block; border: 1px solid #8888; border-radius: .3rem; padding: 0 .3rem; margin: .1rem }
"""

SCRIPT = """
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
"""

PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Glassloop</title><link rel="icon" href="data:,"><style>{STYLE}</style></head><body>
<h1>Glassloop</h1>
<form id="form">
<div id="model-row" hidden><label for="model">Model</label><select id="model"></select></div>
<div id="key-row" hidden><label for="key">API key</label><input id="key" type="password" autocomplete="off"></div>
<label for="text">Text</label><textarea id="text" rows="3" required></textarea>
<div id="pair-row"><label for="pair">Second text</label><textarea id="pair" rows="3"></textarea></div>
<button>Predict</button>
</form>
<p id="answer" aria-live="polite"></p><p id="note" class="note" role="status"></p>
<table id="scores"></table><p id="tokens"></p>
<script>{SCRIPT}</script></body></html>
"""


def source_of(code: str) -> str:
    """Return the checksum of inline code as a content security policy names it."""
    return f"'sha256-{b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"


# Only the style and the script of the page itself, and requests to the server it came from.
POLICY = (
    f"default-src 'none'; style-src {source_of(STYLE)}; script-src {source_of(SCRIPT)}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
