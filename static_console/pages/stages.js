// The stages of a run: which layers where, how far each is, and its memory planned and measured.
import { h, keyed, say, set, show } from "../js/dom.js";
import { bytes, change, count, plain } from "../js/format.js";
import { fillBar, put, table } from "../js/parts.js";
import { STAGES } from "../js/text.js";

const TOLERANCE = 1.1; // a plan is right when the peak is within 10 % of it
const NUMERIC = ["stage", "step", "planned", "difference"];

export function stages() {
  const { element: scroll, body } = table(STAGES.caption, STAGES.region, STAGES.columns, NUMERIC);
  const none = h("p", { class: "muted" }, STAGES.notPlaced);
  const element = h("section", { class: "run-stages" }, h("h3", {}, STAGES.heading), scroll, none);
  const update = ({ view, selectedFellow }) => {
    show(scroll, view.stages.length > 0);
    show(none, view.stages.length === 0);
    keyed(body, view.stages, (stage) => stage.stage, makeRow, (row, stage) => {
      updateRow(row, stage, selectedFellow);
    });
  };
  return { element, update };
}

function makeRow(stage) {
  const bar = h("span", { class: "bar", "aria-hidden": "true" }, h("span", {}));
  const cells = Object.keys(STAGES.columns)
    .slice(1)
    .map((key) => {
      const content = key === "peak" ? [h("span", { class: "peak-text" }), bar] : [];
      return h("td", { class: NUMERIC.includes(key) ? "number" : null, "data-column": key }, content);
    });
  return h("tr", {}, h("th", { scope: "row", class: "number", "data-column": "stage" }, count(stage.stage)), cells);
}

function updateRow(row, stage, selectedFellow) {
  set(row, "aria-current", selectedFellow === stage.fellow_id ? "true" : null);
  const cells = Object.fromEntries([...row.children].map((cell) => [cell.dataset.column, cell]));
  say(cells.fellow, plain(stage.hostname));
  set(cells.fellow, "title", stage.cards.join(", "));
  say(cells.layers, STAGES.layers(stage.first_layer, stage.last_layer));
  put(cells.phase, stage.phase, STAGES.noPhase);
  put(cells.step, stage.step === null ? null : count(stage.step), STAGES.noStep);
  say(cells.planned, bytes(stage.planned_bytes));
  drawPeak(cells.peak, stage);
  const { peak_bytes: peak, planned_bytes: planned } = stage;
  put(cells.difference, peak === null ? null : change(peak / planned - 1), STAGES.notMeasured);
  const isTold = stage.sent_bytes !== null && stage.received_bytes !== null;
  const traffic = `${bytes(stage.sent_bytes)} / ${bytes(stage.received_bytes)}`;
  put(cells.traffic, isTold ? traffic : null, STAGES.noTraffic);
}

function drawPeak(cell, { peak_bytes: peak, planned_bytes: planned }) {
  const [text, bar] = cell.children;
  put(text, peak === null ? null : bytes(peak), STAGES.notMeasured);
  show(bar, peak !== null);
  if (peak !== null) fillBar(bar, peak / planned, TOLERANCE);
}
