// Smoothing and thinning of a curve: pure arithmetic on arrays, nothing of the page.

export const WEIGHT = 0.8;

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/**
 * Debiased exponential moving average over every point: s = w*s + (1-w)*y, out = s / (1 - w^n),
 * n counting finite points only. A point that is not finite gives null (a gap) and is not averaged.
 */
export function smooth(values, weight = WEIGHT) {
  let sum = 0;
  let bias = 1;
  return values.map((value) => {
    if (!isNumber(value)) return null;
    sum = weight * sum + (1 - weight) * value;
    bias *= weight;
    return sum / (1 - bias);
  });
}

/**
 * At most `columns` groups of neighbouring points, each drawn by its lowest and highest, so that
 * no peak is lost. Gaps (null) are kept. Returns indices into `values`, rising.
 */
export function thin(values, columns) {
  if (values.length <= columns * 2) return values.map((_, index) => index);
  const kept = [];
  const width = values.length / columns;
  for (let column = 0; column < columns; column += 1) {
    const from = Math.floor(column * width);
    const to = Math.min(values.length, Math.floor((column + 1) * width));
    kept.push(...extremes(values, from, to));
  }
  return kept;
}

function extremes(values, from, to) {
  let [low, high, gap] = [-1, -1, -1];
  for (let index = from; index < to; index += 1) {
    if (!isNumber(values[index])) gap = index;
    else {
      if (low < 0 || values[index] < values[low]) low = index;
      if (high < 0 || values[index] > values[high]) high = index;
    }
  }
  return [...new Set([low, high, gap])].filter((index) => index >= 0).sort((a, b) => a - b);
}
