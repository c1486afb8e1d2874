// Elements from data. Text always becomes a text node, so that names that users chose cannot be
// markup.

/**
 * Make an element.
 * @param {string} tag
 * @param {Object<string, unknown>} attributes false, null and undefined leave one out
 * @param {...(Node|string|number|null|undefined|Array)} children
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

export const byId = (id) => document.getElementById(id);

/** Replace what a place shows, only if it changed: focus and scrolling stay where they are. */
export function show(place, ...nodes) {
  const next = el("div", {}, ...nodes);
  if (place.dataset.shown === next.innerHTML) return;
  place.dataset.shown = next.innerHTML;
  const active = document.activeElement;
  const focused = place.contains(active) ? active.dataset.key : null;
  const opened = [...place.querySelectorAll("details[open] > summary")].map(
    (summary) => summary.dataset.key);
  place.replaceChildren(...next.childNodes);
  for (const key of opened) {
    place.querySelector(`[data-key="${CSS.escape(key)}"]`)?.closest("details")
      .setAttribute("open", "");
  }
  if (focused) place.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

/** Empty a place that something else will fill. */
export function clear(place) {
  place.replaceChildren();
  delete place.dataset.shown;
}

export const chip = (text, kind = "") => el("span", { class: `chip ${kind}`.trim() }, text);

export const empty = (text) => el("p", { class: "card empty" }, text);

/**
 * Make a table that scrolls in its own box when it is wider than the page.
 * @param {string} caption
 * @param {Array<{name: string, kind?: string}>} columns kind is a class: "number" or "tight"
 * @param {Array<Array<Node|string>>} rows the first cell of each is its heading
 */
export function table(caption, columns, rows) {
  const cell = (value, index) =>
    el(index === 0 ? "th" : "td",
      { class: columns[index].kind, scope: index === 0 ? "row" : null }, value);
  const [name] = caption.split(/[;,]/); // read aloud each time that it is come to
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name },
    el("table", {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {},
        columns.map((column) => el("th", { scope: "col", class: column.kind }, column.name)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell))))));
}
