// Boots the page that the address names.
import { TEXT } from "./text.js";
import { trainingPage } from "../pages/training.js";

/** The pool in the address: /pools/{owner}/{pool}/training, or ?pool=owner/name; null for all. */
export function poolOf(location) {
  const found = /^\/pools\/([^/]+)\/([^/]+)\/training\/?$/.exec(location.pathname);
  if (found) return `${decodeURIComponent(found[1])}/${decodeURIComponent(found[2])}`;
  return new URLSearchParams(location.search).get("pool") || null;
}

const pool = poolOf(location);
document.title = TEXT.documentTitle(pool);
trainingPage(pool, new URLSearchParams(location.search).get("job"));
