// A curve's points: sorted by step, each step once, the newest report of a step wins. Pure.
import { smooth } from "./ema.js";

export const MARKERS_UNTIL = 30;
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A series with more points: rows of {step, loss}, in any order. */
export function addPoints(series = { steps: [], losses: [] }, rows) {
  const sorted = [...rows].sort((a, b) => a.step - b.step);
  const last = series.steps.at(-1) ?? 0;
  if (sorted.length && sorted[0].step > last) return append(series, sorted);
  const byStep = new Map(series.steps.map((step, index) => [step, series.losses[index]]));
  for (const row of sorted) byStep.set(row.step, row.loss);
  const steps = [...byStep.keys()].sort((a, b) => a - b);
  return { steps, losses: steps.map((step) => byStep.get(step)) };
}

function append(series, sorted) {
  const fresh = sorted.filter((row, index) => row.step !== sorted[index + 1]?.step);
  return {
    steps: [...series.steps, ...fresh.map((row) => row.step)],
    losses: [...series.losses, ...fresh.map((row) => row.loss)],
  };
}

/** What a sentence needs: first, last, lowest, trend, and where the loss stopped being finite. */
export function facts(series) {
  const { steps, losses } = series;
  const smoothed = smooth(losses);
  const finite = losses.map((_, index) => index).filter((index) => isNumber(losses[index]));
  if (!finite.length) return null;
  const [first, last] = [finite[0], finite.at(-1)];
  const lowest = finite.reduce((best, index) => (losses[index] < losses[best] ? index : best));
  const broken = losses.findIndex((value, index) => index > last && !isNumber(value));
  return {
    count: finite.length,
    first: { step: steps[first], loss: losses[first] },
    last: { step: steps[last], loss: losses[last], smoothed: smoothed[last] },
    lowest: { step: steps[lowest], loss: losses[lowest] },
    trend: trend(finite.map((index) => smoothed[index])),
    notFinite: broken < 0 ? null : steps[broken],
  };
}

/** Whether the smoothed curve moved by more than 1 % over its last fifth (at least 5 points). */
function trend(smoothed) {
  const back = Math.max(5, Math.floor(smoothed.length / 5));
  const [now, then] = [smoothed.at(-1), smoothed.at(-1 - Math.min(back, smoothed.length - 1))];
  const moved = (now - then) / Math.max(Math.abs(then), 1e-9);
  return Math.abs(moved) < 0.01 ? "flat" : moved < 0 ? "down" : "up";
}
