// The only place that asks the leader: REST below /api/v1, problems as one kind of error.
import { TEXT } from "./text.js";

const ROOT = "/api/v1";

/** What the leader refused, in its own words. status 0: it could not be reached. */
export class Problem extends Error {
  constructor(status, code, message, hint = "") {
    super(message);
    this.status = status;
    this.code = code;
    this.hint = hint;
  }
}

/** GET a path below /api/v1; parameters that are null are left out. */
export function get(path, parameters = {}, signal = undefined) {
  const asked = Object.entries(parameters).filter(([, value]) => value !== null && value !== "");
  const query = new URLSearchParams(asked).toString();
  return ask(query ? `${path}?${query}` : path, { signal });
}

/** POST JSON to a path below /api/v1, with an id of its own so that a repeat is not done twice. */
export function post(path, body = {}) {
  return ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ request_id: randomId(), ...body }),
  });
}

/** The address of the event stream for a pool and a job; either may be null. */
export function eventsAddress(pool, jobId) {
  const query = new URLSearchParams();
  if (pool) query.set("pool", pool);
  if (jobId) query.set("job_id", jobId);
  return `${ROOT}/events${query.size ? `?${query}` : ""}`;
}

async function ask(path, options) {
  const response = await reach(path, options);
  const body = await response.json().catch(() => null);
  if (response.ok && body) return body;
  throw new Problem(
    response.status,
    body?.code ?? "internal",
    body?.detail ?? TEXT.unexplained(response.status),
    body?.hint ?? "",
  );
}

async function reach(path, options) {
  try {
    const headers = { Accept: "application/json", ...options.headers };
    return await fetch(ROOT + path, { ...options, headers, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "unreachable", TEXT.unreachable, TEXT.unreachableHint);
  }
}

function randomId() {
  // crypto.randomUUID is missing on plain http from another machine.
  const raw = crypto.getRandomValues(new Uint8Array(12));
  return `console-${[...raw].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
