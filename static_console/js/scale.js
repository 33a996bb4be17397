// From values to pixels, and the round numbers beside an axis. Pure.

/** A linear scale; with isLog the logarithm is drawn (values must be above 0). */
export function scale([low, high], [from, to], isLog = false) {
  const shape = isLog ? Math.log10 : (value) => value;
  const [a, b] = [shape(low), shape(high)];
  const factor = b === a ? 0 : (to - from) / (b - a);
  return (value) => (factor === 0 ? (from + to) / 2 : from + (shape(value) - a) * factor);
}

/** Round numbers inside [low, high], about `wanted` of them: 1, 2 or 5 times a power of ten. */
export function ticks(low, high, wanted) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const size = [1, 2, 5, 10].map((n) => n * power).find((step) => step >= raw * 0.7);
  const first = Math.ceil(low / size - 1e-9);
  const last = Math.floor(high / size + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, n) => Number(((first + n) * size).toPrecision(12)));
}

/** Round numbers of a step axis: whole ones only. */
export function wholeTicks(low, high, wanted) {
  return ticks(low, high, wanted).filter(Number.isInteger);
}

/** The range of finite values, with a twentieth of room above and below. */
export function range(values, isLog = false) {
  const finite = values.filter((value) => Number.isFinite(value) && (!isLog || value > 0));
  if (!finite.length) return null;
  let [low, high] = [finite[0], finite[0]];
  for (const value of finite) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (isLog) return low === high ? [low / 1.1, high * 1.1] : [low / 1.02, high * 1.02];
  const room = low === high ? Math.max(Math.abs(low) * 0.05, 0.05) : (high - low) * 0.06;
  return [low - room, high + room];
}

/** The path of a line through points [x, y]; a null y breaks it. */
export function path(points) {
  let isDown = false;
  let text = "";
  for (const [x, y] of points) {
    if (y === null) isDown = false;
    else {
      text += `${isDown ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      isDown = true;
    }
  }
  return text;
}

const SHAPES = [
  (x, y) => `M${x - 3.2} ${y}a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z`,
  (x, y) => `M${x - 3} ${y - 3}h6v6h-6z`,
  (x, y) => `M${x} ${y - 3.8}l3.8 6.6h-7.6z`,
  (x, y) => `M${x} ${y - 4}l4 4-4 4-4-4z`,
  (x, y) => `M${x} ${y + 3.8}l3.8-6.6h-7.6z`,
  (x, y) => `M${x - 3} ${y - 1}h2v-2h2v2h2v2h-2v2h-2v-2h-2z`,
];

/** The outline of a marker: its own shape for each of six series. */
export const marker = (series, x, y) => SHAPES[series % SHAPES.length](round(x), round(y));

const round = (value) => Math.round(value * 10) / 10;

/** Dash and offset of series `index` of `all`: lines that lie on each other show in turn. */
export function dash(index, all) {
  const turns = Math.min(Math.max(all, 2), 6);
  return { "stroke-dasharray": `7 ${7 * (turns - 1)}`, "stroke-dashoffset": -7 * (index % turns) };
}
