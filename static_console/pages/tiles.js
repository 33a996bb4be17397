// Six tiles on the pool as a whole.
import { h } from "../js/dom.js";
import { bytes, count, loss, percent } from "../js/format.js";
import { Tile } from "../js/parts.js";
import { CONNECTION, TEXT, TILES } from "../js/text.js";

export function tiles() {
  const all = Object.fromEntries(
    ["fellows", "cards", "memory", "step", "stepTime", "loss"].map((key) => [key, new Tile(TILES[key])]),
  );
  const list = h("dl", { class: "tiles tiles-six" }, Object.values(all).map((tile) => tile.element));
  const heading = h("h2", { id: "tiles-heading" }, TILES.heading, h("span", { class: "stale-mark" }, TEXT.stale));
  const element = h("section", { class: "plain", "aria-labelledby": "tiles-heading" }, heading, list);
  const wait = () => Object.values(all).forEach((tile) => tile.update({ value: null, reason: CONNECTION.connecting }));
  return { element, update: ({ cluster }) => (cluster ? update(all, cluster) : wait()) };
}

function update(all, cluster) {
  const online = cluster.fellows - cluster.offline;
  const isNone = online <= 0;
  all.fellows.update({ value: count(online), sub: TILES.fellowsSub(cluster) });
  all.cards.update({
    value: isNone ? null : count(cluster.cards),
    sub: TILES.cardsSub(cluster.cores, bytes(cluster.memory_bytes)),
    reason: TILES.noFellow,
  });
  all.memory.update(memory(cluster, isNone));
  all.step.update({
    value: cluster.step === null ? null : count(cluster.step),
    sub: stepSub(cluster.jobs),
    reason: TILES.noRun,
    share: cluster.step !== null && cluster.jobs.length === 1 ? cluster.step / cluster.jobs[0].steps : null,
  });
  const { step_s: step } = cluster;
  all.stepTime.update({
    ...stepTime(step),
    reason: cluster.jobs.length ? TILES.noStep : TILES.noRun,
  });
  all.loss.update({
    value: cluster.mean_loss === null ? null : loss(cluster.mean_loss),
    sub: TILES.lossSub(cluster.jobs.length),
    reason: cluster.jobs.length ? TILES.noStep : TILES.noRun,
  });
}

/** Seconds a step, or milliseconds below one; and steps a minute. */
function stepTime(step) {
  if (step === null) return { value: null };
  const perMinute = 60 / step;
  const sub = TILES.stepTimeSub(perMinute < 10 ? perMinute.toFixed(1) : count(perMinute));
  if (step < 1) return { value: (step * 1000).toFixed(0), unit: TILES.perStepShort, sub };
  return { value: step.toFixed(step < 10 ? 2 : 1), unit: TILES.perStep, sub };
}

function memory({ card_used_bytes: used, card_total_bytes: total }, isNone) {
  if (used === null) return { value: null, reason: isNone ? TILES.noFellow : TILES.noMemory };
  const [value, unit] = bytes(used).split(" ");
  const share = total ? used / total : null;
  return { value, unit, sub: TILES.memorySub(bytes(total), percent(share)), share };
}

function stepSub(jobs) {
  if (jobs.length === 1) return TILES.stepSub(count(jobs[0].steps));
  return jobs.length ? TILES.stepSubMany(jobs.length) : "";
}
