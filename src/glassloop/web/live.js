// Ask the server for changes, and replace the parts of the page that have changed.
(() => {
  const one = (selector, within) => (within || document).querySelector(selector);
  const all = (selector, within) => Array.from((within || document).querySelectorAll(selector));
  const note = document.getElementById("connection");
  const address = new URL(location.href);
  address.searchParams.set("update", "1");
  address.hash = "";
  let tag = "", seconds = 1, failures = 0, timer = 0;

  // What the reader has chosen in a part: hidden series, opened data tables, the focused element.
  const nameOf = (button) => one("figcaption", button.closest("figure")).textContent + "\n" + button.textContent;
  const chosen = (part) => ({
    hidden: all('.legend button[aria-pressed="false"]', part).map(nameOf),
    open: all("details", part).map((element) => element.open),
    focus: all("a, button, summary, .plot, input", part).indexOf(document.activeElement),
  });
  const choose = (part, { hidden, open, focus }) => {
    all(".legend button", part).filter((button) => hidden.includes(nameOf(button))).forEach((button) => button.click());
    all("details", part).forEach((element, place) => { element.open = Boolean(open[place]); });
    const focused = focus >= 0 && all("a, button, summary, .plot, input", part)[focus];
    if (focused) focused.focus({ preventScroll: true });
  };
  const keyOf = (row) => (one("input", row) || row).value;

  // The rows of a sortable table stay where the reader has sorted them: only their cells are replaced.
  const mergeRows = (body, fresh) => {
    const old = new Map(all(":scope > tr", body).map((row) => [keyOf(row), row]));
    const rows = all(":scope > tr", fresh);
    const sorted = one("th[aria-sort]", body.closest("table"));
    rows.forEach((row, place) => {
      const known = old.get(keyOf(row));
      old.delete(keyOf(row));
      if (known) {
        Array.from(row.cells).forEach((cell, column) => {
          if (column && known.cells[column].outerHTML !== cell.outerHTML) known.cells[column].replaceWith(cell.cloneNode(true));
        });
        if (!sorted && body.children[place] !== known) body.insertBefore(known, body.children[place] || null);
      } else {
        body.insertBefore(row.cloneNode(true), sorted ? null : body.children[place] || null);
      }
    });
    old.forEach((row) => row.remove());
    const form = one(`form.filter[data-for="${body.id}"]`);
    if (form) form.dispatchEvent(new Event("input", { bubbles: true }));
  };

  const shown = new Map(all("[data-part]").map((part) => [part, null]));
  const replacePart = (part, html) => {
    if (shown.get(part) === html) return;
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    const rows = one("table.sortable tbody[id]", part), freshRows = one("table.sortable tbody[id]", fresh.content);
    shown.set(part, html);
    if (part.dataset.part === "list" && !rows !== !freshRows) { location.reload(); return; }
    if (rows && freshRows) { mergeRows(rows, freshRows); return; }
    const before = chosen(part);
    part.replaceChildren(fresh.content);
    choose(part, before);
  };

  const say = (text) => { if (note.textContent !== text) note.textContent = text; };
  const update = async () => {
    const response = await fetch(address, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (response.status === 304) return say("");
    if (response.status === 404) return say("This run folder was removed. The page shows what was read last.");
    if (!response.ok) return say("The page cannot be updated: " + (await response.text()));
    tag = response.headers.get("ETag") || "";
    const found = await response.json();
    if (found.reload) return location.reload();
    say("");
    seconds = found.seconds;
    document.title = found.tab;
    for (const part of shown.keys()) {
      if (found.parts[part.dataset.part] !== undefined) replacePart(part, found.parts[part.dataset.part]);
    }
  };
  const loop = async () => {
    clearTimeout(timer);
    if (!document.hidden) {
      try { await update(); failures = 0; }
      catch {
        failures += 1;
        if (failures > 1) say("glassloop ui has stopped. This page shows what it read last.");
      }
    }
    timer = setTimeout(loop, 1000 * Math.min(seconds * (1 + failures), 30));
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) loop(); });
  timer = setTimeout(loop, 500);

  // The runs that are marked in the list are compared.
  const compare = () => {
    const link = document.getElementById("compare");
    if (!link) return;
    const marked = all("#runs input:checked").map((box) => "run=" + encodeURIComponent(box.value));
    link.hidden = marked.length < 2;
    link.href = "compare?" + marked.join("&");
    link.textContent = `Compare ${marked.length} runs`;
  };
  document.addEventListener("change", compare);
  compare();
})();
