// The loss curve of a run with its sentence and its numbers as a table.
import { LossChart } from "../js/chart.js";
import { h, keyed, say, set, show } from "../js/dom.js";
import { smooth } from "../js/ema.js";
import { count, loss, plain } from "../js/format.js";
import { facts } from "../js/series.js";
import { ENDED } from "../js/store.js";
import { CHART, STAGES } from "../js/text.js";

const ROWS = 50;
const NOTHING = { steps: [], losses: [] };

export function curve() {
  const part = { page: 0, isOpen: false };
  part.chart = new LossChart("loss-sentence");
  part.sentence = h("p", { class: "sentence", id: "loss-sentence" });
  part.log = h("button", { type: "button", class: "small", "aria-pressed": "false" }, CHART.log);
  part.log.addEventListener("click", () => {
    const isLog = part.log.getAttribute("aria-pressed") !== "true";
    set(part.log, "aria-pressed", String(isLog));
    part.chart.setLog(isLog);
  });
  const top = h("div", { class: "part-head" }, h("h3", {}, CHART.heading), h("div", { class: "spacer" }), part.log);
  part.table = numbers(part);
  part.element = h("div", { class: "curve" }, top, part.chart.element, part.sentence, part.table.element);
  part.update = (state) => update(part, state);
  return part;
}

function update(part, { view, series, seriesProblem, jobId }) {
  if (part.jobId !== jobId) Object.assign(part, { jobId, page: 0 });
  const last = Math.max(view.stages.length - 1, 0);
  const main = series[last] ?? Object.values(series).at(-1) ?? NOTHING;
  const fellows = lines(view, series);
  part.chart.update({ main, fellows });
  show(part.log, main.steps.length > 0);
  say(part.sentence, seriesProblem ? `${CHART.failed} ${seriesProblem.message}` : sentence(main, fellows));
  show(part.sentence, part.sentence.textContent !== "");
  part.table.update(main, fellows);
}

/** One line a fellow, while a run over several fellows is going on. */
function lines(view, series) {
  if (ENDED.includes(view.state) || view.stages.length < 2) return [];
  const told = view.stages.filter((stage) => series[stage.stage]?.steps.length);
  const hosts = view.stages.map((stage) => stage.hostname);
  const isTwice = (name) => hosts.indexOf(name) !== hosts.lastIndexOf(name);
  return told.map(({ stage, hostname }) => {
    const name = isTwice(hostname) ? STAGES.onHost(plain(hostname), stage) : plain(hostname);
    return { name, ...series[stage] };
  });
}

function sentence(main, fellows) {
  const told = facts(main);
  if (!told) return "";
  const { first, last, lowest } = told;
  if (told.count === 1) return CHART.one(count(last.step), loss(last.loss));
  const words = CHART.many({
    first: loss(first.loss),
    firstStep: count(first.step),
    last: loss(last.loss),
    lastStep: count(last.step),
    smoothed: loss(last.smoothed),
    trend: CHART.trend[told.trend],
    lowest: loss(lowest.loss),
    lowestStep: count(lowest.step),
  });
  const broken = told.notFinite === null ? "" : CHART.notFinite(count(told.notFinite), loss(last.loss));
  return words + broken + behind(fellows);
}

/** Names the fellow that is furthest behind, from two steps on: one step apart is the pipeline. */
function behind(fellows) {
  if (fellows.length < 2) return "";
  const ends = fellows.map((one) => one.steps.at(-1));
  const [most, least] = [Math.max(...ends), Math.min(...ends)];
  if (most - least < 2) return "";
  return CHART.behind(fellows[ends.indexOf(least)].name, count(least), most - least);
}

function numbers(part) {
  const toggle = h("button", { type: "button", class: "small", "aria-expanded": "false", "aria-controls": "loss-table" });
  const head = h("tr");
  const body = h("tbody");
  const caption = h("caption", { class: "hidden-text" }, CHART.caption);
  const scroll = h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": CHART.caption }, h("table", {}, caption, h("thead", {}, head), body));
  const newer = h("button", { type: "button", class: "small" }, CHART.newer);
  const older = h("button", { type: "button", class: "small" }, CHART.older);
  const where = h("span", { class: "muted" });
  const region = h("div", { id: "loss-table", hidden: true }, scroll, h("div", { class: "pager" }, newer, older, where));
  const state = { main: NOTHING, fellows: [] };
  const draw = () => drawTable({ part, toggle, head, body, newer, older, where, region }, state.main, state.fellows);
  toggle.addEventListener("click", () => {
    part.isOpen = !part.isOpen;
    draw();
  });
  newer.addEventListener("click", () => draw((part.page -= 1)));
  older.addEventListener("click", () => draw((part.page += 1)));
  const update = (main, fellows) => {
    Object.assign(state, { main, fellows });
    draw();
  };
  return { element: h("div", { class: "numbers" }, toggle, region), update };
}

function drawTable({ part, toggle, head, body, newer, older, where, region }, main, fellows) {
  const all = main.steps.length;
  show(toggle, all > 0);
  say(toggle, part.isOpen ? CHART.tableHide : CHART.table);
  set(toggle, "aria-expanded", String(part.isOpen));
  show(region, part.isOpen && all > 0);
  if (!part.isOpen || !all) return;
  part.page = Math.min(Math.max(part.page, 0), Math.ceil(all / ROWS) - 1);
  const to = all - part.page * ROWS;
  const from = Math.max(0, to - ROWS);
  const smoothed = smooth(main.losses);
  const others = fellows.map((one) => new Map(one.steps.map((step, index) => [step, one.losses[index]])));
  const columns = [...Object.values(CHART.columns), ...fellows.map((one) => one.name)];
  keyed(head, columns.map((words, index) => ({ words, index })), ({ index }) => index, () => h("th", { scope: "col", class: "number" }), (cell, { words }) => say(cell, words));
  const rows = Array.from({ length: to - from }, (_, n) => to - 1 - n);
  keyed(body, rows, (index) => main.steps[index], () => h("tr"), (row, index) => {
    const values = [main.losses[index], smoothed[index], ...others.map((one) => one.get(main.steps[index]) ?? null)];
    keyed(row, [main.steps[index], ...values].map((value, at) => ({ value, at })), ({ at }) => at, ({ at }) => h(at ? "td" : "th", { class: "number", scope: at ? null : "row" }), (cell, { value, at }) => say(cell, at ? loss(value) : count(value)));
  });
  newer.disabled = part.page === 0;
  older.disabled = from === 0;
  say(where, CHART.page(count(part.page * ROWS + 1), count(all - from), count(all)));
}
