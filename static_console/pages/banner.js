// Says when the leader is not heard: since when, when it is tried again; marks the page as stale.
import { announce } from "../js/announce.js";
import { h, icon, say, set, show } from "../js/dom.js";
import { ago, clock } from "../js/format.js";
import { CONNECTION } from "../js/text.js";

const STALE_S = 15; // three heartbeats

export function banner(store, feed) {
  const words = h("strong", {});
  const live = h("div", { role: "status" }, words);
  const since = h("span", {});
  const again = h("span", {});
  const now = h("button", { type: "button", class: "small", on: { click: () => feed.retry() } }, CONNECTION.now);
  const detail = h("span", { class: "banner-detail" }, since, " ", again);
  const box = h("div", { class: "banner", hidden: true }, icon("warning"), live, detail, now);
  const parts = { box, words, since, again };
  const update = (state) => draw(state, parts, Date.now() / 1000);
  return { element: h("div", { class: "banner-place" }, box), update, tick: () => update(store.state) };
}

function draw({ connection }, { box, words, since, again }, now) {
  const isLost = connection.state === "lost";
  if (!box.hidden && !isLost) announce(CONNECTION.back);
  show(box, isLost);
  say(words, isLost ? CONNECTION.lost : "");
  const isStale = isLost && now - (connection.heardAt ?? 0) >= STALE_S;
  set(document.body, "data-stale", isStale ? "true" : null);
  if (!isLost) return;
  const { heardAt, retryAt } = connection;
  say(since, heardAt ? CONNECTION.since(clock(heardAt), ago(heardAt, now)) : "");
  say(again, CONNECTION.again(retryAt ? Math.max(0, Math.ceil(retryAt - now)) : 0));
}
