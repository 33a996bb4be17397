// How to start a run and how to add a machine: the commands, and what to tell an agent.
import { command } from "../js/copy.js";
import { inform } from "../js/dialog.js";
import { h } from "../js/dom.js";
import { HOW } from "../js/text.js";

/** The ways to start a run, for a pool (null: the command line's own). */
export function startARun(pool) {
  return h(
    "div",
    { class: "how" },
    h("p", {}, HOW.cli),
    command(HOW.planCommand(pool), HOW.planName),
    command(HOW.runCommand(pool), HOW.runName),
    h("p", {}, HOW.agent),
    command(HOW.agentAddress(location.origin), HOW.agentAddressName),
    h("p", { class: "muted" }, HOW.agentSentence),
  );
}

export const showNewRun = (pool) => inform(HOW.runHeading, startARun(pool));

export function showAddFellow(pool) {
  const content = h(
    "div",
    { class: "how" },
    h("p", {}, HOW.fellow),
    command(HOW.inviteCommand(pool), HOW.inviteName),
    h("p", {}, HOW.fellowThen),
  );
  return inform(HOW.fellowHeading, content);
}
