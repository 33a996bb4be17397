// Copying to the clipboard, also where the browser offers none (plain http off this machine).
import { announce } from "./announce.js";
import { h, icon, say } from "./dom.js";
import { TEXT } from "./text.js";

/** Copy text; true when the clipboard holds it. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const area = h("textarea", { class: "off-screen", readonly: true });
  area.value = text;
  const before = document.activeElement;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  before?.focus();
  return done;
}

/** A button that copies what textOf() gives and says so on itself and aloud. */
export function copyButton(textOf, label = TEXT.copy) {
  const words = h("span", {}, label);
  const button = h("button", { type: "button", class: "small" }, icon("copy"), words);
  button.addEventListener("click", async () => {
    const done = await copyText(textOf());
    const told = done ? TEXT.copied : TEXT.notCopied;
    say(words, told);
    announce(told);
    setTimeout(() => say(words, label), 2000);
  });
  return button;
}

/** A command line in a box with a Copy button. */
export function command(line, name) {
  const code = h("code", { tabindex: 0, role: "group", "aria-label": name }, line);
  const box = h("div", { class: "command" }, code, copyButton(() => code.textContent));
  return box;
}
