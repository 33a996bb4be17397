// The header row: title, pool, status words, and the two ways to put work into the swarm.
import { announce } from "../js/announce.js";
import { h, icon, replace, say, set, show } from "../js/dom.js";
import { onSystemTheme, shownTheme, toggleTheme } from "../js/theme.js";
import { TEXT } from "../js/text.js";
import { showAddFellow, showNewRun } from "./how.js";

export function head(store) {
  const top = document.getElementById("top");
  const pool = h("span", { class: "pool-name" });
  const dot = h("span", { class: "dot", "aria-hidden": "true" });
  const words = h("span", {});
  const status = h("p", { class: "status-words" }, dot, words);
  const ask = () => store.state.pool;
  const newRun = h("button", { type: "button", class: "primary", on: { click: () => showNewRun(ask()) } }, TEXT.newRun);
  const addFellow = h("button", { type: "button", on: { click: () => showAddFellow(ask()) } }, TEXT.addFellow);
  const actions = h("div", { class: "actions" }, newRun, addFellow);
  top.append(pool, status, h("div", { class: "spacer" }), actions, themeButton());
  return { update: (state) => update(state, { pool, dot, words, status, actions }) };
}

function update(state, { pool, dot, words, status, actions }) {
  const isInside = state.access === "in";
  say(pool, state.pool ?? TEXT.allPools);
  show(status, isInside && state.cluster !== null);
  show(actions, isInside);
  if (!state.cluster) return;
  set(dot, "data-state", dotState(state.cluster));
  if (words.textContent === state.cluster.words) return;
  const isFirst = words.textContent === "";
  say(words, state.cluster.words);
  if (!isFirst) announce(state.cluster.words, "status", 5);
}

function dotState({ training, ready }) {
  if (training > 0) return "training";
  return ready > 0 ? "ready" : "offline";
}

function themeButton() {
  const button = h("button", { type: "button", class: "quiet square" });
  const draw = () => {
    const isDark = shownTheme() === "dark";
    set(button, "aria-label", isDark ? TEXT.toLight : TEXT.toDark);
    set(button, "title", isDark ? TEXT.toLight : TEXT.toDark);
    replace(button, icon(isDark ? "sun" : "moon"));
  };
  button.addEventListener("click", () => {
    toggleTheme();
    draw();
  });
  onSystemTheme(draw);
  draw();
  return button;
}
