// Brings the picked job's log lines into the store, each once, also over a lost connection.
import { get } from "./api.js";

const PAGE = 500;
const PAGES_AT_MOST = 10;

export class LogFeed {
  constructor(store, refuse) {
    this.store = store;
    this.refuse = refuse;
    this.isWanted = true;
    this.jobId = null;
    this.forget();
  }

  forget() {
    this.cursor = null;
    this.last = null; // the name of the newest line in the store
    this.filling = Promise.resolve();
  }

  /** A new connection for this job begins; lines already here stay when it is the same job. */
  begin(jobId) {
    if (jobId !== this.jobId || !this.store.state.log.isKnown) this.forget();
    this.jobId = jobId;
  }

  /** The newest lines, as every connection begins with; what lies between is asked for. */
  snapshot(told) {
    const jobId = this.jobId;
    this.filling = this.filling.then(() => this.#take(jobId, told)).catch((problem) => {
      this.refuse(problem, () => this.store.dispatch({ type: "logs_problem", problem }));
    });
  }

  /** Lines that came since; they wait until a hole before them is filled. */
  more(told) {
    const jobId = this.jobId;
    this.filling = this.filling.then(() => this.#add(jobId, told.lines, 0, told.cursor));
  }

  async #take(jobId, told) {
    if (this.cursor === null) {
      this.#add(jobId, told.lines, told.omitted, told.cursor);
      return;
    }
    const names = told.lines.map(nameOf);
    const at = this.last === null ? -1 : names.lastIndexOf(this.last);
    if (at >= 0) this.#add(jobId, told.lines.slice(at + 1), 0, told.cursor);
    else await this.#fill(jobId, told, names[0]);
  }

  /** Read on from the last known line until the snapshot's first; a hole too long is told. */
  async #fill(jobId, told, first) {
    for (let page = 0; page < PAGES_AT_MOST; page += 1) {
      const between = await get(`/jobs/${jobId}/logs`, { cursor: this.cursor, limit: PAGE });
      const end = between.lines.findIndex((row) => nameOf(row) === first);
      this.#add(jobId, end < 0 ? between.lines : between.lines.slice(0, end), 0, between.cursor);
      if (end >= 0 || !between.omitted || !between.lines.length) {
        this.#add(jobId, told.lines, 0, told.cursor);
        return;
      }
      if (page === PAGES_AT_MOST - 1) {
        const missed = Math.max(0, between.omitted - told.lines.length);
        this.#add(jobId, told.lines, missed, told.cursor);
      }
    }
  }

  #add(jobId, rows, missed, cursor) {
    if (jobId !== this.jobId) return;
    this.cursor = cursor;
    if (rows.length) this.last = nameOf(rows.at(-1));
    this.store.dispatch({ type: "logs", jobId, rows, missed });
  }
}

const nameOf = (row) => `${row.at} ${row.stage} ${row.level} ${row.untrusted_text}`;
