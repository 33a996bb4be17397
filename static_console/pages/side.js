// The side navigation: the pages that exist, and the pools that the caller may see.
import { h, keyed, say, set } from "../js/dom.js";
import { TEXT } from "../js/text.js";

const address = (pool) => (pool ? `/pools/${pool}/training` : "/training");

export function side(store) {
  const nav = document.getElementById("nav");
  const training = h("a", { href: address(store.state.pool), "aria-current": "page" }, TEXT.training);
  const list = h("ul", { class: "nav-list" });
  const heading = h("h2", { class: "nav-heading", id: "nav-pools" }, TEXT.pools);
  set(list, "aria-labelledby", "nav-pools");
  nav.append(h("ul", { class: "nav-list" }, h("li", {}, training)), heading, list);
  return { update: (state) => update(state, list) };
}

function update(state, list) {
  const told = state.pools.map((row) => row.pool);
  const known = state.pool && !told.includes(state.pool) ? [state.pool, ...told] : told;
  keyed(list, [null, ...known], (pool) => pool ?? "", makeEntry, (entry, pool) => {
    const link = entry.firstElementChild;
    say(link, pool ?? TEXT.allPools);
    set(link, "aria-current", pool === state.pool ? "true" : null);
  });
}

const makeEntry = (pool) => h("li", {}, h("a", { href: address(pool) }));
