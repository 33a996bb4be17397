// The training run: which job, its state, four tiles, and the parts below them.
import { toast } from "../js/announce.js";
import { command } from "../js/copy.js";
import { confirm } from "../js/dialog.js";
import { h, keyed, replace, say, show } from "../js/dom.js";
import { count, day, duration, loss, plain, seconds } from "../js/format.js";
import { Badge, Tile, problemBox } from "../js/parts.js";
import { ENDED, sortedJobs } from "../js/store.js";
import { HOW, RUN, TEXT } from "../js/text.js";
import { curve } from "./curve.js";
import { startARun } from "./how.js";
import { settings } from "./settings.js";
import { stages } from "./stages.js";

export function run(store, feed) {
  const part = { store, feed, badge: new Badge() };
  part.select = h("select", { id: "run-select" });
  part.select.addEventListener("change", () => feed.pick(part.select.value));
  part.picker = h("div", { class: "picker" }, h("label", { for: "run-select" }, RUN.pick), part.select);
  part.stop = h("button", { type: "button", class: "danger-quiet", on: { click: () => askStop(part) } }, RUN.stop);
  part.resume = h("button", { type: "button", on: { click: () => askResume(part) } }, RUN.resume);
  part.tiles = Object.fromEntries(["step", "loss", "fellows", "duration"].map((key) => [key, new Tile(RUN[key])]));
  part.notes = notes();
  part.below = [curve(), settings(), stages()];
  part.problem = problemBox(() => feed.retry());
  part.loading = h("p", { class: "muted", "aria-busy": "true" }, TEXT.loading);
  part.first = h("div", { class: "empty" });
  part.body = h("div", { class: "run-body" }, part.notes.element, runTiles(part), runGrid(part));
  const heading = h("h2", { id: "run-heading" }, RUN.heading, h("span", { class: "stale-mark" }, TEXT.stale));
  const buttons = [h("div", { class: "spacer" }), part.resume, part.stop];
  const top = h("div", { class: "card-head" }, heading, part.picker, part.badge.element, buttons);
  const content = [top, part.loading, part.first, part.problem.element, part.body];
  const element = h("section", { class: "card", "aria-labelledby": "run-heading" }, content);
  return { element, update: (state) => update(part, state), tick: (state, now) => drawTime(part, state, now) };
}

const runTiles = (part) => h("dl", { class: "tiles tiles-four" }, Object.values(part.tiles).map((tile) => tile.element));

function runGrid({ below: [chart, side, table] }) {
  return h("div", { class: "run-grid" }, chart.element, side.element, table.element);
}

function update(part, state) {
  const { rows, isKnown } = state.jobs;
  const job = state.view ?? rows.find((row) => row.job_id === state.jobId) ?? null;
  show(part.picker, rows.length > 0);
  show(part.badge.element, job !== null);
  show(part.stop, job !== null && !ENDED.includes(job.state));
  show(part.resume, canGoOn(state.view));
  show(part.loading, !isKnown || (state.jobId !== null && !state.view && !state.viewProblem));
  drawFirst(part, isKnown && rows.length === 0 && state.jobId === null, state.pool);
  part.problem.update(state.viewProblem);
  show(part.body, state.view !== null);
  drawPicker(part, state);
  if (job) part.badge.update(job.state);
  if (!state.view) return;
  part.notes.update(state.view, state.fellows.rows);
  drawTiles(part, state.view);
  drawTime(part, state, Date.now() / 1000);
  part.below.forEach((one) => one.update(state));
}

/** No run yet: how to start one, built once. */
function drawFirst(part, isEmpty, pool) {
  show(part.first, isEmpty);
  if (!isEmpty || part.first.childElementCount) return;
  replace(part.first, h("h3", {}, pool ? HOW.runFirst : HOW.runFirstAll), startARun(pool));
}

function drawPicker({ select }, { jobs, jobId }) {
  const listed = sortedJobs(jobs.rows);
  keyed(select, listed, (row) => row.job_id, (row) => h("option", { value: row.job_id }), (option, row) => {
    say(option, RUN.option({ ...row, model_id: plain(row.model_id) }, row.started_at ? day(row.started_at) : RUN.notStarted));
  });
  if (jobId && select.value !== jobId) select.value = jobId;
}

function drawTiles({ tiles }, view) {
  const saved = view.saved_step ? RUN.savedAt(count(view.saved_step)) : "";
  const sub = [RUN.stepOf(count(view.steps)), saved].filter(Boolean).join(" · ");
  tiles.step.update({ value: count(view.step), sub, share: view.step / view.steps });
  tiles.loss.update({
    value: view.loss === null ? null : loss(view.loss),
    sub: RUN.smoothed(loss(view.smoothed_loss)),
    reason: RUN.noLoss,
  });
  const isLive = !ENDED.includes(view.state) && view.state !== "pending";
  tiles.fellows.update({
    value: view.stages.length ? count(new Set(view.stages.map((one) => one.fellow_id)).size) : null,
    sub: [isLive ? RUN.live : RUN.planned, dtypeOf(view)].filter(Boolean).join(" · "),
    reason: RUN.notPlaced,
  });
}

/** The number format that the leader chose, or the one the job file set. */
function dtypeOf({ chosen, config }) {
  const found = chosen.find(({ setting }) => setting.split(".").at(-1) === "dtype");
  const value = found ? found.value : config.model.dtype;
  return value === "auto" ? "" : String(value);
}

/** While the leader is not heard, time stands still at its last word. */
function drawTime({ tiles }, { view, connection }, clock) {
  if (!view) return;
  const now = connection.state === "lost" ? (connection.heardAt ?? clock) : clock;
  const isOver = ENDED.includes(view.state);
  const end = isOver ? view.ended_at : now;
  const spent = view.started_at === null || end === null ? null : end - view.started_at;
  const left = view.step_s === null ? null : view.step_s * (view.steps - view.step);
  const parts = [
    view.step_s === null ? "" : RUN.perStep(seconds(view.step_s)),
    isOver ? RUN.ended(day(view.ended_at)) : left === null || view.state !== "running" ? "" : RUN.left(seconds(left)),
  ];
  tiles.duration.update({
    value: spent === null ? null : duration(spent),
    sub: parts.filter(Boolean).join(" · ") || RUN.notTimed,
    reason: RUN.notBegun,
  });
}

/** Whether a run that has ended has something saved to go on from. */
const canGoOn = (view) => ["failed", "cancelled"].includes(view?.state) && Boolean(view.saved_step);

/** Why it waits or ended, what it went on from, the first error with its fellow, and the adapter when it is ready. */
function notes() {
  const reason = h("p", { class: "reason" });
  const text = h("pre", { tabindex: 0, role: "group", "aria-label": RUN.error });
  const note = h("p", { class: "muted" }, RUN.errorNote);
  const error = h("div", { class: "callout" }, h("h3", {}, RUN.error), text, note);
  const saved = h("p", { class: "muted" });
  const ready = h("p", { class: "muted" });
  const adapter = h("div", { class: "adapter" });
  const update = (view, rows) => {
    const told = plain(view.untrusted_error ?? "");
    const isSame = told !== "" && plain(view.reason) === told;
    say(reason, isSame ? "" : plain(view.reason));
    show(reason, reason.textContent !== "");
    say(text, told);
    show(error, told !== "");
    const { resume } = view.config;
    say(saved, (resume ? RUN.wentOn(resume) : "") + plain(view.saving_paused ?? ""));
    show(saved, saved.textContent !== "");
    const hosts = new Map(rows.map((one) => [one.fellow_id, plain(one.untrusted_hostname)]));
    say(ready, RUN.ifLost(view.if_lost ?? [], view.stages, (id) => hosts.get(id) || id));
    show(ready, ready.textContent !== "");
    drawAdapter(adapter, view);
  };
  return { element: h("div", { class: "run-notes" }, reason, saved, ready, error, adapter), update };
}

function drawAdapter(adapter, view) {
  show(adapter, view.adapter_ready);
  if (!view.adapter_ready || adapter.dataset.job === view.job_id) return;
  adapter.dataset.job = view.job_id;
  replace(adapter, h("p", {}, RUN.adapter), command(RUN.adapterCommand(view.job_id), RUN.adapterName));
}

async function askStop({ store, feed }) {
  const { view, jobs, jobId } = store.state;
  const job = view ?? jobs.rows.find((row) => row.job_id === jobId);
  const done = await confirm({
    heading: RUN.stopHeading,
    sentences: RUN.stopSentences(job),
    keep: RUN.stopKeep,
    go: RUN.stopGo,
    act: () => feed.cancel(job.job_id),
  });
  if (done === "done") toast(RUN.stopped(job.job_id));
}

async function askResume({ store, feed }) {
  const { view } = store.state;
  const done = await confirm({
    heading: RUN.resumeHeading,
    sentences: RUN.resumeSentences(view),
    keep: RUN.resumeKeep,
    go: RUN.resumeGo,
    act: () => feed.resume(view.job_id),
    isSafe: true,
  });
  if (done === "done") toast(RUN.resumed(view.job_id));
}
