// Small pieces that several parts of a page are built of: tiles, unknown values, times, badges.
import { h, icon, replace, say, set, show } from "./dom.js";
import { exact, iso } from "./format.js";
import { STATES, TEXT, UNKNOWN } from "./text.js";

/** "–" with its reason, for eyes (title) and for screen readers. */
export function unknown(reason) {
  return h("span", { class: "unknown", title: reason }, UNKNOWN, h("span", { class: "hidden-text" }, ` ${reason}`));
}

/** Put a value into an element: its text, or "–" with the reason when it is null. */
export function put(element, text, reason) {
  const told = text === null ? `\u0000${reason}` : text;
  if (element.dataset.told === told) return;
  element.dataset.told = told;
  replace(element, text === null ? unknown(reason) : text);
}

/** A <time> in local words with the exact time in its title. */
export function time(unixSeconds, words) {
  return h("time", { datetime: iso(unixSeconds), title: exact(unixSeconds) }, words);
}

/** A tile: a name, a big value with its unit, a line below, and a bar where a share is known. */
export class Tile {
  constructor(name) {
    this.value = h("span", { class: "tile-value" });
    this.unit = h("span", { class: "tile-unit" });
    this.sub = h("span", { class: "tile-sub" });
    this.bar = h("span", { class: "bar", "aria-hidden": "true", hidden: true }, h("span", {}));
    const told = h("dd", {}, h("span", { class: "tile-line" }, this.value, this.unit), this.sub, this.bar);
    this.element = h("div", { class: "tile" }, h("dt", {}, name), told);
  }

  /** value null: "–", and reason says why in the line below. share: 0..1 or null for no bar. */
  update({ value, unit = "", sub = "", reason = "", share = null }) {
    put(this.value, value, reason);
    say(this.unit, value === null ? "" : unit);
    say(this.sub, value === null ? reason : sub);
    show(this.bar, share !== null);
    if (share !== null) fillBar(this.bar, share);
  }
}

/** Set how much of a bar is filled; past the limit it is marked. */
export function fillBar(bar, share, limit = 1) {
  bar.firstElementChild.style.inlineSize = `${Math.min(100, Math.max(0, share * 100)).toFixed(1)}%`;
  set(bar, "data-over", share > limit);
}

/** A job's state as a badge: shape, colour and word. */
export class Badge {
  constructor() {
    this.element = h("span", { class: "badge" });
  }

  update(state) {
    if (this.element.dataset.state === state) return;
    this.element.dataset.state = state;
    replace(this.element, icon(state), STATES[state] ?? state);
  }
}

/** A group of radio buttons drawn as one strip; each has a word and a count. */
export class Strip {
  constructor(legend, words, onChange) {
    this.counts = {};
    const name = `strip-${Math.random().toString(36).slice(2)}`;
    const entries = Object.entries(words).map(([value, word], index) => {
      const input = h("input", { type: "radio", name, value, checked: index === 0 });
      input.addEventListener("change", () => onChange(value));
      this.counts[value] = h("span", { class: "count" });
      return h("label", {}, input, h("span", {}, word), " ", this.counts[value]);
    });
    this.element = h("fieldset", { class: "strip" }, h("legend", { class: "hidden-text" }, legend), entries);
  }

  update(counts) {
    for (const [value, number] of Object.entries(counts)) say(this.counts[value], number);
  }
}

/** A table that scrolls sideways inside its card. columns: key -> heading; numeric keys right-aligned. */
export function table(caption, region, columns, numeric) {
  const heads = Object.entries(columns).map(([key, words]) =>
    h("th", { scope: "col", class: numeric.includes(key) ? "number" : null, "data-column": key }, words),
  );
  const body = h("tbody");
  const element = h(
    "div",
    { class: "table-scroll", tabindex: 0, role: "region", "aria-label": region },
    h("table", {}, h("caption", { class: "hidden-text" }, caption), h("thead", {}, h("tr", {}, heads)), body),
  );
  return { element, body };
}

/** A place for what could not be read, with a way to ask again. */
export function problemBox(onRetry) {
  const words = h("p", {});
  const retry = h("button", { type: "button", class: "small", on: { click: onRetry } }, TEXT.retry);
  const element = h("div", { class: "callout", role: "alert", hidden: true }, words, retry);
  const update = (problem) => {
    show(element, problem !== null);
    say(words, problem ? [problem.message, problem.hint].filter(Boolean).join(" – ") : "");
    set(element, "data-code", problem?.code ?? null);
  };
  return { element, update };
}
