// The log of the picked run, of one stage or all; the selected fellow chooses the stage.
import { announce } from "../js/announce.js";
import { copyButton } from "../js/copy.js";
import { h, icon, keyed, say, set, show } from "../js/dom.js";
import { plain } from "../js/format.js";
import { LogList, lineText, passes } from "../js/loglist.js";
import { Strip, problemBox } from "../js/parts.js";
import { LOG, TEXT } from "../js/text.js";

const LEVELS = ["all", "info", "warning", "error"];

export function log(store, feed) {
  const part = { store, level: "all", stage: null, followed: null, errors: 0, isOpen: true };
  const redraw = () => draw(part, store.state);
  part.strip = new Strip(LOG.level, LOG.levels, (level) => {
    part.level = level;
    redraw();
  });
  part.stageSelect = h("select", { id: "log-stage" });
  part.stageSelect.addEventListener("change", () => {
    part.stage = part.stageSelect.value === "" ? null : Number(part.stageSelect.value);
    redraw();
  });
  part.list = new LogList({ onFollow: () => drawFollow(part) });
  part.heading = h("span", {}, LOG.heading);
  part.follow = h("button", { type: "button", class: "small follow", on: { click: () => part.list.jump() } });
  part.openButton = h("button", { type: "button", class: "small" }, LOG.open);
  part.note = h("p", { class: "muted" });
  part.problem = problemBox(() => feed.retry());
  const clear = h("button", { type: "button", class: "small", on: { click: () => store.dispatch({ type: "log_clear" }) } }, LOG.clear);
  const close = h("button", { type: "button", class: "small" }, LOG.close);
  const turn = (isOpen) => {
    part.isOpen = isOpen;
    feed.setLogs(isOpen);
    redraw();
    (isOpen ? close : part.openButton).focus();
  };
  close.addEventListener("click", () => turn(false));
  part.openButton.addEventListener("click", () => turn(true));
  const copy = copyButton(() => shownLines(part, store.state).map(lineText).join("\n"), LOG.copy);
  const stage = h("div", { class: "picker" }, h("label", { for: "log-stage" }, LOG.stage), part.stageSelect);
  part.controls = h("div", { class: "log-controls" }, stage, part.strip.element, h("div", { class: "spacer" }), part.follow, copy, clear, close);
  const heading = h("h2", { id: "log-heading" }, part.heading, h("span", { class: "stale-mark" }, TEXT.stale));
  const top = h("div", { class: "card-head" }, heading, h("div", { class: "spacer" }), part.openButton);
  const element = h("section", { class: "card", "aria-labelledby": "log-heading" }, top, part.controls, part.problem.element, part.note, part.list.region);
  return { element, update: (state) => draw(part, state) };
}

function draw(part, state) {
  const { view, jobId } = state;
  say(part.heading, jobId ? LOG.of(jobId) : LOG.heading);
  const isShown = part.isOpen && jobId !== null;
  show(part.controls, isShown);
  show(part.openButton, !part.isOpen);
  drawStages(part, view, state.selectedFellow);
  const lines = shownLines(part, state);
  show(part.list.region, isShown && lines.length > 0);
  if (isShown) part.list.update(lines);
  part.strip.update(countLevels(part, state.log.lines));
  const words = noteWords(part, state, lines);
  say(part.note, words);
  show(part.note, words !== "");
  part.problem.update(part.isOpen ? state.log.problem : null);
  drawFollow(part);
  tellErrors(part, state);
}

/** Selecting a fellow shows its stage; the reader may then choose another by hand. */
function drawStages(part, view, selectedFellow) {
  const stages = view?.stages ?? [];
  const rows = [{ value: "", words: LOG.allStages }, ...stages.map((one) => ({ value: String(one.stage), words: LOG.stageOption(one.stage, plain(one.hostname)) }))];
  keyed(part.stageSelect, rows, (row) => row.value, (row) => h("option", { value: row.value }), (option, row) => say(option, row.words));
  const wanted = `${view?.job_id ?? ""} ${selectedFellow ?? ""}`;
  if (part.followed !== wanted && view) {
    part.followed = wanted;
    part.stage = stages.find((one) => one.fellow_id === selectedFellow)?.stage ?? null;
  }
  const value = part.stage === null ? "" : String(part.stage);
  if (part.stageSelect.value !== value) part.stageSelect.value = value;
}

const shownLines = (part, { log: { lines } }) => lines.filter((line) => passes(line, part.level, part.stage));

function countLevels(part, lines) {
  const counts = Object.fromEntries(LEVELS.map((level) => [level, 0]));
  for (const line of lines) {
    if (line.missed !== undefined || !passes(line, "all", part.stage)) continue;
    counts.all += 1;
    if (line.level in counts) counts[line.level] += 1;
  }
  return counts;
}

function noteWords(part, { jobId, view, log: told, fellows, selectedFellow }, lines) {
  if (!part.isOpen) return LOG.closed;
  if (!jobId) return LOG.noJob;
  const isElsewhere = selectedFellow && view && !view.stages.some((one) => one.fellow_id === selectedFellow);
  if (isElsewhere) {
    const row = fellows.rows.find((one) => one.fellow_id === selectedFellow);
    return LOG.noStage(plain(row?.untrusted_hostname ?? selectedFellow), jobId);
  }
  if (lines.length || told.problem) return "";
  if (!told.isKnown) return TEXT.loading;
  return told.lines.length ? LOG.emptyFilter : LOG.empty;
}

function drawFollow({ follow, list }) {
  const words = list.isFollowing ? LOG.follow : LOG.jump(list.unseen);
  set(follow, "data-following", list.isFollowing ? "true" : null);
  if (follow.dataset.told === words) return;
  follow.dataset.told = words;
  follow.replaceChildren(icon("down"), words);
}

/** New errors are said aloud, at most every ten seconds. */
function tellErrors(part, { log: told, jobId }) {
  if (part.errorsOf !== jobId || !told.isKnown) {
    Object.assign(part, { errorsOf: jobId, errors: told.isKnown ? told.errors : null });
    return;
  }
  if (part.errors === null) part.errors = told.errors;
  const fresh = told.errors - part.errors;
  if (fresh <= 0) return;
  announce(LOG.newErrors(fresh), "errors", 10);
  part.errors = told.errors;
}
