// The one event stream of a tab: opened again by our own clock, closed while the tab is hidden.
import { eventsAddress } from "./api.js";

const KINDS = ["snapshot", "cluster", "fellows", "jobs", "job", "logs", "ended"];
const WAITS_S = [1, 2, 4, 8, 15];
const HIDDEN_S = 60;

/**
 * Follow the leader's events.
 *
 * hears.event(kind, data) for every event; hears.opened(), hears.lost(retryAt in unix seconds);
 * hears.refused() is asked after each failure whether to go on (false: signed out or not allowed).
 */
export class Stream {
  constructor(hears) {
    this.hears = hears;
    this.where = { pool: null, jobId: null };
    this.failures = 0;
    this.source = null;
    this.timer = 0;
    document.addEventListener("visibilitychange", () => this.#visibility());
  }

  /** Follow a pool and a job from now on; opens a new connection. */
  follow(where) {
    this.where = where;
    this.failures = 0;
    this.#open();
  }

  /** Try again at once. */
  now() {
    this.#open();
  }

  stop() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  #open() {
    this.stop();
    const source = new EventSource(eventsAddress(this.where.pool, this.where.jobId));
    this.source = source;
    for (const kind of KINDS) {
      source.addEventListener(kind, (event) => this.#hear(source, kind, event));
    }
    source.onopen = () => source === this.source && this.hears.opened();
    source.onerror = () => this.#fail(source);
  }

  #hear(source, kind, event) {
    if (source !== this.source) return;
    this.failures = 0;
    this.hears.event(kind, JSON.parse(event.data));
    // The leader ends the stream itself when the token has ended: ask why at once.
    if (kind === "ended") this.#fail(source);
  }

  async #fail(source) {
    if (source !== this.source) return;
    this.stop();
    const wait = WAITS_S[Math.min(this.failures, WAITS_S.length - 1)];
    this.failures += 1;
    this.hears.lost(Date.now() / 1000 + wait);
    const goesOn = await this.hears.refused();
    if (goesOn && !this.source) this.timer = setTimeout(() => this.#open(), wait * 1000);
  }

  #visibility() {
    clearTimeout(this.hideTimer);
    if (document.hidden) this.hideTimer = setTimeout(() => this.#sleep(), HIDDEN_S * 1000);
    else if (this.isAsleep) {
      this.isAsleep = false;
      this.#open();
    }
  }

  #sleep() {
    if (!this.source) return;
    this.isAsleep = true;
    this.stop();
  }
}
