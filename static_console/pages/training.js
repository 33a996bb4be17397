// The training page: its parts in order, one store, one feed.
import { h, replace, set, show } from "../js/dom.js";
import { Feed } from "../js/feed.js";
import { createStore, initial } from "../js/store.js";
import { banner } from "./banner.js";
import { fellows } from "./fellows.js";
import { head } from "./head.js";
import { log } from "./log.js";
import { refused, signedOut } from "./outside.js";
import { run } from "./run.js";
import { side } from "./side.js";
import { tiles } from "./tiles.js";

/** Build the page for a pool (null: all) and start following; jobId is picked when it is given. */
export function trainingPage(pool, jobId) {
  const store = createStore(initial(pool));
  const feed = new Feed(store);
  const parts = [banner, tiles, run, fellows, log].map((make) => make(store, feed));
  const frame = [head(store), side(store)];
  const inside = h("div", { class: "inside" }, parts.map((part) => part.element));
  const outside = h("div", { class: "outside", hidden: true });
  const main = document.getElementById("main");
  replace(main, inside, outside);
  let revision = 0;
  const render = (state) => {
    const isOutside = state.access === "out" || state.access === "refused";
    if (isOutside && outside.hidden) replace(outside, state.access === "out" ? signedOut() : refused(state));
    show(outside, isOutside);
    show(inside, !isOutside);
    [...frame, ...parts].forEach((part) => part.update(state));
    keepAddress(state);
    set(main, "data-rev", (revision += 1));
  };
  store.listen(render);
  render(store.state);
  setInterval(() => parts.forEach((part) => part.tick?.(store.state, Date.now() / 1000)), 1000);
  feed.start(jobId);
}

/** The picked job stands in the address, so that a link or a reload shows the same run. */
function keepAddress({ jobId }) {
  const address = new URL(location.href);
  if (!jobId || address.searchParams.get("job") === jobId) return;
  address.searchParams.set("job", jobId);
  history.replaceState(null, "", address);
}
