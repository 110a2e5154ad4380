"use strict";
(() => {
  const root = document.documentElement;
  const one = (selector, within) => (within || document).querySelector(selector);
  const all = (selector, within) => Array.from((within || document).querySelectorAll(selector));

  // Light or dark: the reader's choice, kept if the browser allows it.
  const stored = (value) => {
    try { return value ? localStorage.setItem("glassloop-theme", value) : localStorage.getItem("glassloop-theme"); }
    catch { return null; }
  };
  const chosen = stored();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

  // The values of a mark: its <title>, moved into a data attribute so that the browser does not show it a second time.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.append(tip);
  const wordsOf = (mark) => {
    const title = mark.dataset.tip === undefined && one(":scope > title", mark);
    if (title) { mark.dataset.tip = title.textContent; title.remove(); }
    return mark.dataset.tip;
  };
  const markAt = (target) => {
    const mark = target.closest && target.closest(".plot *");
    const named = mark && (mark.dataset.tip !== undefined || one(":scope > title", mark)) ? mark : mark && mark.parentElement;
    return named && named.closest(".plot") && !named.classList.contains("plot") && wordsOf(named) ? named : null;
  };
  const show = (mark, x, y) => {
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(6, Math.min(x + 14, innerWidth - box.width - 6)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18) + "px";
  };
  const hide = () => { tip.hidden = true; all(".plot .here").forEach((mark) => mark.classList.remove("here")); };
  const pointed = (event) => {
    const mark = markAt(event.target);
    if (mark) show(mark, event.clientX, event.clientY); else if (!tip.hidden) hide();
  };
  document.addEventListener("pointermove", pointed);
  document.addEventListener("pointerdown", pointed);
  document.addEventListener("scroll", hide, { passive: true });
  document.addEventListener("focusout", hide);

  // Arrow keys walk through the marks of the focused chart.
  document.addEventListener("keydown", (event) => {
    const plot = event.target.closest && event.target.closest(".plot");
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") hide();
    if (!plot || !step) return;
    const marks = all(".hit, .bar, .cell, .point, .dot", plot).filter((mark) => wordsOf(mark) && !mark.closest(".off"));
    if (!marks.length) return;
    event.preventDefault();
    const last = marks.findIndex((mark) => mark.classList.contains("here"));
    hide();
    const mark = marks[last < 0 ? (step > 0 ? 0 : marks.length - 1) : Math.min(Math.max(last + step, 0), marks.length - 1)];
    mark.classList.add("here");
    const box = mark.getBoundingClientRect();
    show(mark, box.left + box.width / 2, box.top + Math.min(box.height, 40) / 2);
  });

  // Buttons: series of a legend, sorting, the theme, copying.
  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest("button");
    if (!button) return;
    if (button.dataset.series !== undefined && button.closest(".legend")) toggle(button);
    if (button.closest("table.sortable th")) sort(button.closest("th"));
    if (button.classList.contains("more")) {
      button.previousElementSibling.classList.remove("short");
      button.remove();
    }
    if (button.classList.contains("theme")) {
      root.dataset.theme = isDark() ? "light" : "dark";
      stored(root.dataset.theme);
    }
    if (button.classList.contains("copy") && navigator.clipboard) {
      navigator.clipboard.writeText(one("code", button.parentElement).textContent).then(
        () => { button.textContent = "Copied"; }, () => { button.textContent = "Not allowed"; });
    }
  });
  const toggle = (button) => {
    const off = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!off));
    all(`.series[data-series="${button.dataset.series}"]`, button.closest("figure"))
      .forEach((group) => group.classList.toggle("off", off));
  };
  const sort = (head) => {
    const body = one("tbody", head.closest("table")), column = head.cellIndex;
    const up = head.getAttribute("aria-sort") === "descending" || (!head.hasAttribute("aria-sort") && !head.classList.contains("n"));
    all("th", head.parentElement).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => {
      const cell = row.cells[column], given = cell.dataset.value;
      return given === undefined ? cell.textContent.toLowerCase() : given === "" ? -Infinity : Number(given);
    };
    all("tr", body).map((row) => [value(row), row])
      .sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (up ? 1 : -1)).forEach(([, row]) => body.append(row));
  };

  // Filters: a text, and choices that must equal a data attribute.
  const filter = (form) => {
    const items = all(":scope > *", document.getElementById(form.dataset.for));
    const text = (one("input[type=search]", form) || { value: "" }).value.trim().toLowerCase();
    const choices = all("select", form).filter((choice) => choice.value !== "");
    if (text || choices.length) {
      items[0]?.parentElement.classList.remove("short");
      one(`#${CSS.escape(form.dataset.for)} + button.more`)?.remove();
    }
    let shown = 0;
    for (const item of items) {
      const fits = choices.every((choice) => item.dataset[choice.name] === choice.value);
      item.hidden = !(fits && (!text || item.textContent.toLowerCase().includes(text)));
      shown += !item.hidden;
    }
    const output = one("output", form);
    if (output) output.textContent = shown === items.length ? `${shown} rows` : `${shown} of ${items.length} rows`;
  };
  document.addEventListener("input", (event) => {
    const form = event.target.closest && event.target.closest("form.filter");
    if (form) filter(form);
  });
  // Long lists show their first items until the reader asks for more or filters them.
  for (const list of all("ul.items").filter((found) => found.children.length > 10)) {
    const more = document.createElement("button");
    more.type = "button";
    more.className = "plain more";
    more.textContent = `Show all ${list.children.length}`;
    list.classList.add("short");
    list.after(more);
  }
  document.addEventListener("submit", (event) => event.preventDefault());
  all("form.filter").forEach(filter);

  // The section that is being read.
  const links = all("nav.contents a");
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) links.forEach((link) => link.classList.toggle("here", link.hash === "#" + entry.target.id));
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  all("main > section[id]").forEach((section) => seen.observe(section));
})();
