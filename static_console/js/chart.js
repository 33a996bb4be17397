// The loss curve: SVG drawn by hand, a keyboard cursor over it, a legend under it.
import { h, icon, replace, s, say, set, show } from "./dom.js";
import { smooth, thin } from "./ema.js";
import { count, loss } from "./format.js";
import { dash, marker, path, range, scale, ticks, wholeTicks } from "./scale.js";
import { MARKERS_UNTIL } from "./series.js";
import { CHART } from "./text.js";

const HEIGHT = 264;
const SIDE = { left: 56, right: 16, top: 14, bottom: 40 };

/**
 * A chart element with update({main, fellows}).
 * main: {steps, losses} of the run. fellows: [{name, steps, losses}], drawn when there are several.
 */
export class LossChart {
  constructor(describedBy) {
    this.data = { main: { steps: [], losses: [] }, fellows: [] };
    this.cursor = null; // a step; kept while new points arrive
    this.isLog = false;
    this.drawing = s("svg", { class: "chart-svg", "aria-hidden": "true", focusable: "false" });
    this.readout = h("p", { class: "chart-readout", "aria-hidden": "true" });
    this.plot = h(
      "div",
      { class: "chart-plot", tabindex: 0, role: "slider", "aria-label": CHART.label, "aria-describedby": describedBy },
      this.drawing,
    );
    this.empty = h("p", { class: "chart-empty" }, icon("chart"), h("span", {}, CHART.empty));
    this.legend = h("ul", { class: "legend" });
    this.element = h("div", { class: "chart" }, this.readout, this.plot, this.empty, this.legend);
    this.plot.addEventListener("keydown", (event) => this.#key(event));
    this.plot.addEventListener("pointermove", (event) => this.#point(event));
    this.plot.addEventListener("pointerleave", () => this.#leave());
    this.plot.addEventListener("blur", () => this.#leave());
    new ResizeObserver(() => this.#draw()).observe(this.plot);
  }

  update(data) {
    this.data = data;
    const { steps } = data.main;
    show(this.plot, steps.length > 0);
    show(this.empty, steps.length === 0);
    show(this.legend, steps.length > 0);
    set(this.plot, "aria-valuemin", steps[0] ?? 0);
    set(this.plot, "aria-valuemax", steps.at(-1) ?? 0);
    this.#legend();
    this.#draw();
  }

  setLog(isLog) {
    this.isLog = isLog;
    this.#draw();
  }

  #draw() {
    const { main, fellows } = this.data;
    const width = this.plot.clientWidth;
    if (!main.steps.length || !width) return;
    const smoothed = smooth(main.losses);
    const space = this.#space(width, [main, ...fellows]);
    if (!space) return;
    set(this.drawing, "viewBox", `0 0 ${width} ${HEIGHT}`);
    replace(
      this.drawing,
      axes(space),
      rawLine(main, space, fellows.length > 1),
      fellows.length > 1 ? fellows.map((one, index) => fellowLine(one, index, fellows.length, space)) : [],
      line(main.steps, smoothed, space, "line-smooth"),
      gapMarks(main, space),
      (this.cursorMark = s("g", { class: "cursor" })),
    );
    Object.assign(this, { space, smoothed });
    this.#drawCursor();
  }

  #space(width, all) {
    const x = [Math.min(...all.map((one) => one.steps[0] ?? 1)), Math.max(...all.map((one) => one.steps.at(-1) ?? 1))];
    const y = range(all.flatMap((one) => one.losses), this.isLog);
    if (!y) return null;
    return {
      width,
      x,
      y,
      isLog: this.isLog,
      toX: scale(x, [SIDE.left, width - SIDE.right]),
      toY: scale(y, [HEIGHT - SIDE.bottom, SIDE.top], this.isLog),
      columns: Math.max(50, width - SIDE.left - SIDE.right),
    };
  }

  #legend() {
    const { fellows } = this.data;
    const entries = [
      ["line-raw", CHART.raw, null],
      ["line-smooth", CHART.smooth, null],
      ...(fellows.length > 1 ? fellows.map((one, index) => [`line-fellow series-${index % 6}`, one.name, index]) : []),
    ];
    const told = entries.map(([, name]) => name).join("\n");
    if (told === this.legendTold) return;
    this.legendTold = told;
    replace(this.legend, entries.map(([look, name, index]) => h("li", {}, swatch(look, index), name)));
  }

  #key(event) {
    const { steps } = this.data.main;
    const at = this.cursor === null ? steps.length : nearest(steps, this.cursor);
    const moves = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, PageDown: at - 10, PageUp: at + 10, Home: 0, End: steps.length - 1 };
    if (event.key === "Escape") this.#leave();
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.cursor = steps[Math.min(Math.max(moves[event.key], 0), steps.length - 1)];
    this.#drawCursor();
  }

  #point(event) {
    if (!this.space) return;
    const { x, toX } = this.space;
    const left = event.clientX - this.plot.getBoundingClientRect().left;
    const share = (left - toX(x[0])) / Math.max(1, toX(x[1]) - toX(x[0]));
    const { steps } = this.data.main;
    this.cursor = steps[nearest(steps, x[0] + share * (x[1] - x[0]))];
    this.#drawCursor();
  }

  #leave() {
    this.cursor = null;
    this.#drawCursor();
  }

  #drawCursor() {
    const { steps, losses } = this.data.main;
    const at = this.cursor === null ? steps.length - 1 : nearest(steps, this.cursor);
    if (at < 0 || !this.space) return;
    const words = cursorWords(steps[at], losses[at], this.smoothed[at]);
    set(this.plot, "aria-valuenow", steps[at]);
    set(this.plot, "aria-valuetext", words);
    say(this.readout, words);
    if (this.cursorMark) replace(this.cursorMark, this.cursor === null ? [] : this.#cursorShapes(at));
  }

  #cursorShapes(at) {
    const { steps, losses } = this.data.main;
    const { toX, toY } = this.space;
    const x = toX(steps[at]);
    const shapes = [s("line", { x1: x, x2: x, y1: SIDE.top, y2: HEIGHT - SIDE.bottom })];
    for (const [value, look] of [[losses[at], "dot-raw"], [this.smoothed[at], "dot-smooth"]]) {
      if (Number.isFinite(value)) shapes.push(s("circle", { cx: x, cy: toY(value), r: 4, class: look }));
    }
    return shapes;
  }
}

function cursorWords(step, value, smoothed) {
  const isFinite = Number.isFinite(value);
  return isFinite ? CHART.cursor(count(step), loss(value), loss(smoothed)) : CHART.cursorGap(count(step));
}

/** The index of the step nearest to a wanted one (steps rise). */
function nearest(steps, wanted) {
  let [low, high] = [0, steps.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - steps[low - 1] < steps[low] - wanted ? low - 1 : low;
}

function axes({ width, x, y, toX, toY, isLog }) {
  const yTicks = ticks(y[0], y[1], 5).filter((value) => !isLog || value > 0);
  const xTicks = wholeTicks(x[0], x[1], Math.max(3, Math.min(12, Math.floor(width / 64))));
  const bottom = HEIGHT - SIDE.bottom;
  const digits = tickDigits(yTicks);
  return s(
    "g",
    { class: "axes" },
    yTicks.map((value) => [
      s("line", { class: "grid", x1: SIDE.left, x2: width - SIDE.right, y1: toY(value), y2: toY(value) }),
      s("text", { x: SIDE.left - 8, y: toY(value) + 4, "text-anchor": "end" }, value.toFixed(digits)),
    ]),
    xTicks.map((value) => s("text", { x: toX(value), y: bottom + 17, "text-anchor": "middle" }, count(value))),
    s("line", { class: "base", x1: SIDE.left, x2: width - SIDE.right, y1: bottom, y2: bottom }),
    s("text", { class: "axis-name", x: (SIDE.left + width - SIDE.right) / 2, y: HEIGHT - 5, "text-anchor": "middle" }, CHART.x),
    s("text", { class: "axis-name", transform: `translate(11 ${(SIDE.top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, CHART.y),
  );
}

const tickDigits = (values) =>
  Math.min(6, Math.max(...values.map((value) => (String(value).split(".")[1] ?? "").length)));

/** Few points have markers; many, or those with lines of fellows over them, are a thin line. */
function rawLine(main, space, isUnder) {
  const isShort = main.steps.length <= MARKERS_UNTIL;
  const shape = line(main.steps, main.losses, space, isShort ? "line-raw" : "line-raw line-thin");
  return isShort && !isUnder ? [shape, dots(main, space, 0, "dot-raw")] : shape;
}

/** Every stage reports the same loss, so the markers take turns and each line's end has one. */
function fellowLine(one, index, all, space) {
  const shape = line(one.steps, one.losses, space, `line-fellow series-${index % 6}`);
  for (const [name, value] of Object.entries(dash(index, all))) set(shape, name, value);
  const end = one.steps.length - 1;
  const isShort = one.steps.length <= MARKERS_UNTIL;
  const marked = one.steps.map((_, at) => at).filter((at) => at === end || (isShort && at % all === index));
  const points = { steps: marked.map((at) => one.steps[at]), losses: marked.map((at) => one.losses[at]) };
  return [shape, dots(points, space, index, `dot-fellow series-${index % 6}`)];
}

function line(steps, values, { toX, toY, columns, isLog }, look) {
  const points = thin(values, columns).map((index) => {
    const isShown = Number.isFinite(values[index]) && (!isLog || values[index] > 0);
    return [toX(steps[index]), isShown ? toY(values[index]) : null];
  });
  return s("path", { class: `line ${look}`, d: path(points) });
}

function dots({ steps, losses }, { toX, toY, isLog }, index, look) {
  const shown = losses.map((value) => Number.isFinite(value) && (!isLog || value > 0));
  const d = steps.map((step, at) => (shown[at] ? marker(index, toX(step), toY(losses[at])) : "")).join("");
  return s("path", { class: look, d });
}

/** A cross at the top for every step whose loss was not finite. */
function gapMarks({ steps, losses }, { toX }) {
  const bad = steps.filter((_, index) => !Number.isFinite(losses[index]));
  return bad.slice(0, 200).map((step) => {
    const [x, y] = [toX(step), SIDE.top + 4];
    return s("path", { class: "gap-mark", d: `M${x - 4} ${y - 4}l8 8m0-8l-8 8` }, s("title", {}, CHART.gap));
  });
}

function swatch(look, index) {
  const shape = s("path", { class: `line ${look}`, d: "M1 6H23" });
  if (index === null) return s("svg", { class: "swatch", viewBox: "0 0 24 12", "aria-hidden": "true" }, shape);
  for (const [name, value] of Object.entries(dash(0, 2))) set(shape, name, value);
  const dot = s("path", { class: `dot-fellow series-${index % 6}`, d: marker(index, 12, 6) });
  return s("svg", { class: "swatch", viewBox: "0 0 24 12", "aria-hidden": "true" }, shape, dot);
}
