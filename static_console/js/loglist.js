// A list of up to 5,000 log lines of which only those in view are drawn.
import { h, icon } from "./dom.js";
import { clock, iso, plain } from "./format.js";
import { LOG } from "./text.js";

const ROW_PX = 20;
const SPARE = 8;

/** The scrolling region: lines of one height, no wrap, one tab stop; follows until scrolled up. */
export class LogList {
  constructor({ onFollow }) {
    this.lines = [];
    this.isFollowing = true;
    this.seenKey = -1;
    this.onFollow = onFollow;
    this.space = h("div", { class: "log-space" });
    this.region = h(
      "div",
      { class: "log-region", tabindex: 0, role: "log", "aria-label": LOG.region, "aria-live": "off" },
      this.space,
    );
    this.rows = new Map();
    this.region.addEventListener("scroll", () => this.#scrolled());
    this.region.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#draw()).observe(this.region);
  }

  /** Show these lines: [{key, at, stage, level, untrusted_text}] or {key, missed}. */
  update(lines) {
    const dropped = this.#droppedBefore(lines);
    this.lines = lines;
    this.space.style.height = `${lines.length * ROW_PX}px`;
    if (this.isFollowing) this.#toEnd();
    else if (dropped) this.region.scrollTop = Math.max(0, this.region.scrollTop - dropped * ROW_PX);
    this.#draw();
  }

  /** How many lines have come since the reader scrolled up. */
  get unseen() {
    let at = this.lines.length;
    while (at > 0 && this.lines[at - 1].key > this.seenKey) at -= 1;
    return this.isFollowing ? 0 : this.lines.length - at;
  }

  jump() {
    this.#toEnd();
    this.#draw();
  }

  /** Lines that fell off the top: the view must not move under a reader. */
  #droppedBefore(lines) {
    const first = lines[0]?.key ?? 0;
    let dropped = 0;
    while (dropped < this.lines.length && this.lines[dropped].key < first) dropped += 1;
    return dropped;
  }

  #toEnd() {
    this.region.scrollTop = this.lines.length * ROW_PX;
    this.#follow(true);
  }

  #follow(isFollowing) {
    if (isFollowing || this.isFollowing) this.seenKey = this.lines.at(-1)?.key ?? -1;
    if (isFollowing === this.isFollowing) return;
    this.isFollowing = isFollowing;
    this.onFollow();
  }

  #scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.region;
    this.#follow(scrollTop + clientHeight >= scrollHeight - ROW_PX);
    this.#draw();
  }

  #key(event) {
    const page = this.region.clientHeight - ROW_PX;
    const end = this.lines.length * ROW_PX;
    const moves = { ArrowUp: -ROW_PX, ArrowDown: ROW_PX, PageUp: -page, PageDown: page, Home: -end, End: end };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.region.scrollTop += moves[event.key];
  }

  #draw() {
    const { scrollTop, clientHeight } = this.region;
    const from = Math.max(0, Math.floor(scrollTop / ROW_PX) - SPARE);
    const to = Math.min(this.lines.length, Math.ceil((scrollTop + clientHeight) / ROW_PX) + SPARE);
    const shown = new Set();
    for (let index = from; index < to; index += 1) {
      const line = this.lines[index];
      shown.add(line.key);
      let row = this.rows.get(line.key);
      if (!row) {
        row = makeRow(line);
        this.rows.set(line.key, row);
        this.space.append(row);
      }
      row.style.transform = `translateY(${index * ROW_PX}px)`;
    }
    for (const [key, row] of this.rows) {
      if (!shown.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    }
  }
}

function makeRow(line) {
  if (line.missed !== undefined) {
    const words = typeof line.missed === "number" ? LOG.missed(line.missed) : LOG.missedSome;
    return h("div", { class: "log-row log-missed" }, words);
  }
  const level = LOG.word[line.level] ? line.level : "info";
  const mark = level === "error" ? icon("failed") : level === "warning" ? icon("warning") : null;
  return h(
    "div",
    { class: `log-row log-${level}` },
    h("time", { class: "log-time", datetime: iso(line.at) }, clock(line.at)),
    h("span", { class: "log-stage" }, `${line.stage}`),
    h("span", { class: "log-level" }, mark, LOG.word[level]),
    h("span", { class: "log-text" }, plain(line.untrusted_text)),
  );
}

/** A line as it is copied. */
export function lineText(line) {
  if (line.missed !== undefined) {
    return typeof line.missed === "number" ? LOG.missed(line.missed) : LOG.missedSome;
  }
  return `${iso(line.at)} stage ${line.stage} ${line.level} ${plain(line.untrusted_text)}`;
}

/** Whether a line passes the level filter: each level alone; "all" has debug lines too. */
export function passes(line, level, stage) {
  if (line.missed !== undefined) return true;
  return (level === "all" || line.level === level) && (stage === null || line.stage === stage);
}

