// What is said aloud to screen readers, politely and never in a flood; and the short notices.
import { h } from "./dom.js";
import { TEXT } from "./text.js";

const last = new Map();

/** Say a sentence; of one topic at most one in every `everySeconds`, the newest wins. */
export function announce(sentence, topic = "", everySeconds = 0) {
  const now = performance.now();
  const earlier = last.get(topic) ?? { at: -Infinity, timer: 0 };
  clearTimeout(earlier.timer);
  const wait = Math.max(0, earlier.at + everySeconds * 1000 - now);
  const timer = setTimeout(() => {
    last.set(topic, { at: performance.now(), timer: 0 });
    document.getElementById("announcer").textContent = sentence;
  }, wait);
  last.set(topic, { at: earlier.at, timer });
}

/** Show a short notice, at most three at a time; each can be dismissed and goes by itself. */
export function toast(sentence) {
  const area = document.getElementById("toasts");
  const close = h("button", { type: "button", class: "quiet", "aria-label": TEXT.dismiss }, "×");
  const note = h("div", { class: "toast" }, h("span", {}, sentence), close);
  close.addEventListener("click", () => note.remove());
  while (area.children.length >= 3) area.firstElementChild.remove();
  area.append(note);
  setTimeout(() => note.remove(), 6000);
}
