// Native modal dialogs: focus goes in, Esc closes, focus goes back to the opener.
import { h, say, show } from "./dom.js";
import { TEXT } from "./text.js";

/** Show a dialog with a heading and content; resolves when it is closed, to its return value. */
export function open(heading, content, buttons) {
  const id = "dialog-heading";
  const title = h("h2", { id }, heading);
  const dialog = h("dialog", { "aria-labelledby": id }, title, content, buttons);
  const opener = document.activeElement;
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (opener?.isConnected) opener.focus();
      resolve(dialog.returnValue);
    });
  });
}

/** Information with one Close button. */
export function inform(heading, content) {
  const close = h("button", { type: "button", on: { click: shut } }, TEXT.close);
  return open(heading, content, h("div", { class: "dialog-buttons" }, close));
}

/**
 * Ask before something that matters. act() does it; its error is shown in the dialog.
 * isSafe: nothing is lost by it, so its button does not warn.
 * Resolves to "done" when act() succeeded, else "".
 */
export function confirm({ heading, sentences, keep, go, act, isSafe = false }) {
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const stay = h("button", { type: "button", autofocus: true, on: { click: shut } }, keep);
  const proceed = h("button", { type: "button", class: isSafe ? "primary" : "danger" }, go);
  proceed.addEventListener("click", async () => {
    proceed.disabled = true;
    try {
      await act();
      proceed.closest("dialog").close("done");
    } catch (error) {
      say(problem, [error.message, error.hint].filter(Boolean).join(" – "));
      show(problem, true);
      proceed.disabled = false;
    }
  });
  const content = h("div", {}, sentences.map((one) => h("p", {}, one)), problem);
  return open(heading, content, h("div", { class: "dialog-buttons" }, stay, proceed));
}

function shut(event) {
  event.target.closest("dialog").close("");
}
