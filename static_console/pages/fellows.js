// The table of a pool's machines: stable order, filters with counts, a row that stays selected.
import { h, icon, keyed, replace, say, set, show } from "../js/dom.js";
import { ago, bytes, count, loss, percent, plain, rate } from "../js/format.js";
import { Strip, put, table, time } from "../js/parts.js";
import { FELLOWS, TEXT } from "../js/text.js";
import { showAddFellow } from "./how.js";

const NUMERIC = ["memory", "traffic", "step", "loss"];

const FILTERS = {
  all: () => true,
  ready: (row) => row.status === "ready",
  training: (row) => row.status === "training",
  offline: (row) => row.status === "offline",
};

export function fellows(store) {
  const part = { filter: "all", store };
  const strip = new Strip(FELLOWS.filter, FELLOWS.filters, (value) => {
    part.filter = value;
    draw(part, store.state);
  });
  const { element: scroll, body } = table(FELLOWS.caption, FELLOWS.region, FELLOWS.columns, NUMERIC);
  const add = h("button", { type: "button", on: { click: () => showAddFellow(store.state.pool) } }, TEXT.addFellow);
  const emptyText = h("p", {});
  const empty = h("div", { class: "empty" }, h("h3", {}, FELLOWS.empty), emptyText, add);
  const none = h("p", { class: "muted" }, FELLOWS.emptyFilter);
  const omitted = h("p", { class: "muted" });
  const loading = h("p", { class: "muted", "aria-busy": "true" }, TEXT.loading);
  const heading = h("h2", { id: "fellows-heading" }, FELLOWS.heading, h("span", { class: "stale-mark" }, TEXT.stale));
  const top = h("div", { class: "card-head" }, heading, h("div", { class: "spacer" }), strip.element);
  const element = h("section", { class: "card", "aria-labelledby": "fellows-heading" }, top, loading, empty, scroll, none, omitted);
  Object.assign(part, { strip, scroll, body, empty, emptyText, none, omitted, loading });
  return { element, update: (state) => draw(part, state), tick: (state) => draw(part, state) };
}

function draw(part, state) {
  const { rows, isKnown } = state.fellows;
  const omitted = Math.max(0, (state.cluster?.fellows ?? 0) - rows.length);
  const shown = rows.filter(FILTERS[part.filter]);
  const counts = Object.entries(FILTERS).map(([key, passes]) => [key, rows.filter(passes).length]);
  part.strip.update(Object.fromEntries(counts));
  show(part.loading, !isKnown);
  show(part.empty, isKnown && rows.length === 0);
  show(part.strip.element, rows.length > 0);
  show(part.scroll, shown.length > 0);
  show(part.none, rows.length > 0 && shown.length === 0);
  show(part.omitted, omitted > 0);
  say(part.omitted, omitted > 0 ? FELLOWS.omitted(omitted) : "");
  say(part.emptyText, state.pool ? FELLOWS.inPool(state.pool) : FELLOWS.inAll);
  set(part.scroll, "data-pool", state.pool ? "one" : "all");
  keyed(part.body, shown, (row) => row.fellow_id, (row) => makeRow(part, row), (element, row) => {
    updateRow(element, row, state);
  });
}

function makeRow(part, { fellow_id: id }) {
  const select = () => part.store.dispatch({ type: "select_fellow", id: part.store.state.selectedFellow === id ? null : id });
  const button = h("button", { type: "button", class: "link" });
  button.addEventListener("click", (event) => {
    event.stopPropagation();
    select();
  });
  const cells = Object.keys(FELLOWS.columns)
    .slice(1)
    .map((key) => h("td", { class: NUMERIC.includes(key) ? "number" : null, "data-column": key }));
  const memory = cells.find((cell) => cell.dataset.column === "memory");
  replace(memory, h("span", {}), h("span", { class: "peaks", title: FELLOWS.peaksTitle, hidden: true }));
  const row = h("tr", { class: "selectable" }, h("th", { scope: "row", "data-column": "hostname" }, button), cells);
  row.addEventListener("click", select);
  return row;
}

function updateRow(element, row, { selectedFellow }) {
  const isSelected = selectedFellow === row.fellow_id;
  set(element, "aria-current", isSelected ? "true" : null);
  set(element, "data-status", row.status);
  const [name, ...cells] = element.children;
  say(name.firstElementChild, plain(row.untrusted_hostname) || row.fellow_id);
  set(name.firstElementChild, "aria-pressed", isSelected ? "true" : "false");
  const parts = Object.fromEntries(cells.map((cell) => [cell.dataset.column, cell]));
  say(parts.id, row.fellow_id);
  say(parts.pool, row.pool);
  put(parts.version, row.version, FELLOWS.notTold);
  drawStatus(parts.status, row.status);
  drawHealth(parts.health, row);
  drawCards(parts.cards, row);
  drawFigures(parts, row);
  drawSeen(parts.seen, row.last_seen_at);
}

function drawStatus(cell, status) {
  if (cell.dataset.told === status) return;
  cell.dataset.told = status;
  replace(cell, h("span", { class: "state", "data-state": status }, icon(status), FELLOWS.status[status] ?? status));
}

function drawHealth(cell, { health, causes }) {
  const told = [health, ...causes].join("\n");
  if (cell.dataset.told === told) return;
  cell.dataset.told = told;
  const grade = h("span", { class: "grade", "data-grade": health }, health);
  replace(cell, grade, causes.length ? h("span", { class: "causes" }, plain(causes.join("; "))) : null);
}

/** "2 × RTX A4000, GTX 1660 SUPER": cards of one name are counted together. */
function drawCards(cell, row) {
  const names = new Map();
  for (const name of row.card_names) names.set(name, (names.get(name) ?? 0) + 1);
  const words = [...names].map(([name, times]) => (times > 1 ? `${times} × ${plain(name)}` : plain(name)));
  say(cell, words.join(", ") || (row.cards ? count(row.cards) : FELLOWS.noCards));
}

/** An offline fellow shows no last values: they would read as if they still held. */
function drawFigures(parts, row) {
  const isOff = row.status === "offline";
  const told = (value, words, reason) => [isOff || value === null ? null : words, isOff ? FELLOWS.offline : reason];
  const used = row.card_used_bytes;
  put(parts.memory.firstChild, ...told(used, `${bytes(used)} of ${bytes(row.card_total_bytes)}`, FELLOWS.notTold));
  const peaks = isOff ? "" : peaksOf(row);
  say(parts.memory.lastChild, peaks);
  show(parts.memory.lastChild, peaks !== "");
  const traffic = `${rate(row.sent_bytes_s)} / ${rate(row.received_bytes_s)}`;
  put(parts.traffic, ...told(row.sent_bytes_s, traffic, FELLOWS.rateSoon));
  put(parts.step, ...told(row.step, count(row.step), FELLOWS.idle));
  put(parts.loss, ...told(row.loss, loss(row.loss), row.step === null ? FELLOWS.idle : FELLOWS.noLoss));
}

function peaksOf({ card_peak_bytes: memory, busy_peak: busy }) {
  const told = [memory === null ? null : FELLOWS.peak(bytes(memory)), busy === null ? null : FELLOWS.busy(percent(busy))];
  return told.filter((words) => words !== null).join(", ");
}

function drawSeen(cell, at) {
  if (at === null) {
    say(cell, FELLOWS.never);
    return;
  }
  const words = ago(at, Date.now() / 1000);
  if (cell.dataset.told !== String(at)) {
    cell.dataset.told = String(at);
    replace(cell, time(at, words));
  }
  say(cell.firstElementChild, words);
}
