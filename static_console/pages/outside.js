// What is shown to who is not signed in, may not see this pool, or asked for what is not there.
import { command } from "../js/copy.js";
import { h, icon } from "../js/dom.js";
import { REFUSED, SIGNED_OUT, TEXT } from "../js/text.js";

export function signedOut() {
  const code = h("input", { id: "signin-code", name: "code", autocomplete: "off", required: true, spellcheck: "false" });
  const form = h(
    "form",
    { action: "/signin", method: "get", class: "signin-form" },
    h("label", { for: "signin-code" }, SIGNED_OUT.label),
    h("div", { class: "field-row" }, code, h("button", { class: "primary" }, SIGNED_OUT.button)),
  );
  return h(
    "section",
    { class: "card notice", "aria-labelledby": "out-heading" },
    h("h2", { id: "out-heading" }, SIGNED_OUT.heading),
    h("p", {}, SIGNED_OUT.sentence),
    h("p", {}, SIGNED_OUT.how),
    command(SIGNED_OUT.command, SIGNED_OUT.commandName),
    form,
    h("p", { class: "muted" }, SIGNED_OUT.note),
  );
}

export function refused({ refusal }) {
  return h(
    "section",
    { class: "card notice", role: "alert", "aria-labelledby": "out-heading" },
    h("h2", { id: "out-heading" }, icon("warning"), " ", REFUSED[refusal.code] ?? refusal.code),
    h("p", {}, refusal.message),
    refusal.hint ? h("p", {}, refusal.hint) : null,
    h("p", {}, h("a", { href: "/training" }, TEXT.allPools)),
  );
}
