// Light or dark: follows the system until someone chooses; the choice is kept on this machine.
const KEY = "swarm-theme";

/** The theme on screen now: "light" or "dark". */
export function shownTheme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen) return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Change to the other theme and remember it; going back to the system's own forgets the choice. */
export function toggleTheme() {
  const next = shownTheme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Without storage the choice holds until the page is left.
  }
  return next;
}

/** Call back whenever the system's theme changes. */
export function onSystemTheme(callback) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", callback);
}
