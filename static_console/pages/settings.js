// Beside the curve: held-out loss, what the leader chose and why, and the run's own facts.
import { h, keyed, replace, say, show } from "../js/dom.js";
import { count, day, loss, percent, plain, setting } from "../js/format.js";
import { put, time } from "../js/parts.js";
import { ENDED } from "../js/store.js";
import { CHOSEN, EVALUATION, RUN } from "../js/text.js";

export function settings() {
  const parts = [evaluation(), chosen(), facts()];
  const element = h("div", { class: "run-side" }, parts.map((part) => part.element));
  return { element, update: ({ view }) => parts.forEach((part) => part.update(view)) };
}

function evaluation() {
  const list = h("dl", { class: "pairs figures" });
  const verdict = h("p", { class: "verdict" });
  const extent = h("p", { class: "muted" });
  const none = h("p", { class: "muted" }, EVALUATION.none);
  const element = h("section", {}, h("h3", {}, EVALUATION.heading), list, verdict, extent, none);
  const update = (view) => {
    const told = latestOf(view.evaluations);
    show(none, !told.length);
    show(list, told.length > 0);
    keyed(list, rowsOf(told, view), (row) => row.moment, makePair, updateFigure);
    say(verdict, judge(told));
    show(verdict, verdict.textContent !== "");
    say(extent, told.length ? EVALUATION.extent(count(told.at(-1).tokens), count(told.at(-1).sequences)) : "");
  };
  return { element, update };
}

/** The newest evaluation of each moment, in the order base, during, trained. */
function latestOf(evaluations) {
  const byMoment = new Map(evaluations.map((one) => [one.moment, one]));
  return ["base", "during", "trained"].filter((moment) => byMoment.has(moment)).map((moment) => byMoment.get(moment));
}

function rowsOf(told, view) {
  const isWaiting = told.length && told.at(-1).moment !== "trained" && !ENDED.includes(view.state);
  return isWaiting ? [...told, { moment: "trained", loss: null }] : told;
}

const makePair = () => h("div", {}, h("dt", {}), h("dd", {}, h("span", { class: "figure" }), h("span", { class: "muted" })));

function updateFigure(element, one) {
  const [name, told] = element.children;
  say(name, EVALUATION[one.moment]);
  put(told.children[0], one.loss === null ? null : loss(one.loss), EVALUATION.waiting);
  const where = one.moment === "during" ? `${EVALUATION.atStep(count(one.step))}, ` : "";
  say(told.children[1], one.loss === null ? EVALUATION.waiting : where + EVALUATION.accuracy(percent(one.accuracy)));
}

function judge(told) {
  const [base, last] = [told.find((one) => one.moment === "base"), told.at(-1)];
  if (!base || last === base) return "";
  const by = last.loss - base.loss;
  if (Math.abs(by) < 0.0005) return EVALUATION.same;
  return by < 0 ? EVALUATION.fell(loss(-by)) : EVALUATION.rose(loss(by));
}

function chosen() {
  const list = h("dl", { class: "pairs chosen" });
  const none = h("p", { class: "muted" }, CHOSEN.none);
  const element = h("section", {}, h("h3", {}, CHOSEN.heading), list, none);
  const update = ({ chosen: rows }) => {
    show(none, rows.length === 0);
    show(list, rows.length > 0);
    keyed(list, rows, (row) => row.setting, makeChosen, (pair, row) => {
      const [name, value, reason] = pair.children;
      say(name, plain(row.setting));
      say(value, plain(setting(row.value)));
      say(reason, plain(row.reason));
    });
  };
  return { element, update };
}

const makeChosen = () => h("div", {}, h("dt", {}), h("dd", { class: "chosen-value" }), h("dd", { class: "muted" }));

function facts() {
  const list = h("dl", { class: "pairs facts" });
  const element = h("section", {}, h("h3", {}, RUN.facts), list);
  const update = (view) => {
    keyed(list, factRows(view), ([name]) => name, ([name]) => h("div", {}, h("dt", {}, name), h("dd", {})), (pair, [, value]) => {
      const cell = pair.lastElementChild;
      if (cell.dataset.told === String(value)) return;
      cell.dataset.told = String(value);
      replace(cell, typeof value === "number" ? time(value, day(value)) : value);
    });
  };
  return { element, update };
}

/** What a comparison of the split run with one process came to, or how far it is. */
function verified(one) {
  if (!one) return null;
  if (one.verdict === null) return RUN.verifying[one.state];
  return RUN.verdict[one.verdict](one.largest_difference.toExponential(1));
}

function factRows(view) {
  const counts = Object.entries(view.counts).filter(([, number]) => number > 0);
  const plan = view.plan_id && `${view.plan_id} · ${view.pinned ? RUN.pinned : RUN.unpinned}`;
  const rows = [
    [RUN.name, plain(view.name)],
    [RUN.pool, view.pool],
    [RUN.model, plain(view.model_id)],
    [RUN.revision, view.revision && plain(view.revision).slice(0, 12)],
    [RUN.plan, plan],
    [RUN.attempt, String(view.attempt)],
    [RUN.created, view.created_at],
    [RUN.verified, verified(view.verification)],
    [RUN.counts, counts.map(([name, number]) => `${plain(name).replaceAll("_", " ")} ${count(number)}`).join(", ")],
  ];
  return rows.filter(([, value]) => value);
}
