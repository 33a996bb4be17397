// Keeps the store fed: asks once, then follows the events; fills what a lost connection left out.
import { Problem, get, post } from "./api.js";
import { LogFeed } from "./log_feed.js";
import { ENDED, sortedJobs } from "./store.js";
import { Stream } from "./stream.js";

const PAGE = 5000;
const PAGES_AT_MOST = 60;
const FELLOW_STEPS = 500; // a fellow's own line begins at most this many steps back
const FELLOW_EVERY_MS = 2000;
const VIEW_EVERY_MS = 2000;

export class Feed {
  constructor(store) {
    this.store = store;
    this.log = new LogFeed(store, (problem, otherwise) => this.#refuse(problem, otherwise));
    this.isReading = {}; // job and stage -> whether its records are being read now
    this.readTo = {}; // job and stage -> the last step of the records read
    this.toldTo = {}; // job and stage -> the last step that was told of
    this.fellowsAt = 0;
    this.isJobShut = false; // the stream goes without the job: it could not be read
    this.stream = new Stream({
      event: (kind, data) => this.#hear(kind, data),
      opened: () => this.#connection({ state: "open", retryAt: null }),
      lost: (retryAt) => this.#connection({ state: "lost", retryAt }),
      refused: () => this.#mayGoOn(),
    });
  }

  /** Find out what there is, pick a job (the wanted one, else the first of the list), follow. */
  async start(wantedJob) {
    const { pool } = this.store.state;
    get("/pools").then(
      ({ pools }) => this.store.dispatch({ type: "pools", rows: pools }),
      () => {}, // the list in the side bar is a comfort: its absence is no error of this page
    );
    try {
      const { jobs } = await get("/jobs", { pool, limit: 100 });
      this.store.dispatch({ type: "jobs", data: { changed: jobs } });
      this.store.dispatch({ type: "access", access: "in" });
      this.pick(wantedJob ?? sortedJobs(jobs)[0]?.job_id ?? null);
    } catch (problem) {
      this.#refuse(problem);
      if (this.store.state.access === "unknown") this.pick(wantedJob);
    }
  }

  /** Show this job from now on. */
  pick(jobId) {
    this.isJobShut = false;
    if (jobId !== this.store.state.jobId) [this.readTo, this.toldTo] = [{}, {}];
    this.store.dispatch({ type: "pick", jobId });
    this.#follow();
  }

  /** Subscribe to the log or leave it: without it the stream follows the pool alone. */
  setLogs(isWanted) {
    this.log.isWanted = isWanted;
    this.store.dispatch({ type: "log_reset" });
    this.#follow();
  }

  /** Connect at once and ask again for what could not be read. */
  retry() {
    this.isJobShut = false;
    this.#follow();
  }

  async cancel(jobId) {
    this.#heardView(await post(`/jobs/${jobId}/cancel`));
  }

  async resume(jobId) {
    this.#heardView(await post(`/jobs/${jobId}/resume`));
  }

  #follow() {
    const { pool, jobId } = this.store.state;
    this.log.begin(jobId);
    const isWithJob = this.log.isWanted && !this.isJobShut;
    this.stream.follow({ pool, jobId: isWithJob ? jobId : null });
  }

  #connection(change) {
    this.store.dispatch({ type: "connection", change });
  }

  #hear(kind, data) {
    this.#connection({ heardAt: Date.now() / 1000 });
    if (kind === "snapshot") this.#heardSnapshot(data);
    else if (kind === "job") this.#heardView(data);
    else if (kind === "logs") this.log.more(data);
    else if (kind === "jobs") this.#heardJobs(data);
    else if (kind !== "ended") this.store.dispatch({ type: kind, data });
  }

  #heardSnapshot(data) {
    this.store.dispatch({ type: "snapshot", data });
    const { jobId, jobs } = this.store.state;
    if (data.job) this.#heardView(data.job);
    else if (jobId && !this.isJobShut) this.#view();
    else if (jobs.rows.length) this.pick(sortedJobs(jobs.rows)[0].job_id);
    if (data.logs) this.log.snapshot(data.logs);
  }

  /** A first job of a pool is picked by itself; without the log the whole view is asked for. */
  #heardJobs(data) {
    this.store.dispatch({ type: "jobs", data });
    const { jobId } = this.store.state;
    if (jobId === null && data.changed.length) this.pick(data.changed[0].job_id);
    else if (!this.log.isWanted && data.changed.some((row) => row.job_id === jobId)) this.#viewSoon();
  }

  #heardView(view) {
    this.store.dispatch({ type: "view", data: view });
    this.store.dispatch({ type: "jobs", data: { changed: [rowOf(view)] } });
    this.#readRecords();
  }

  async #view() {
    const { jobId } = this.store.state;
    this.viewAt = Date.now();
    try {
      this.#heardView(await get(`/jobs/${jobId}`));
    } catch (problem) {
      this.#refuse(problem, () => this.store.dispatch({ type: "view_problem", problem }));
    }
  }

  #viewSoon() {
    if (this.viewTimer) return;
    const wait = Math.max(0, (this.viewAt ?? 0) + VIEW_EVERY_MS - Date.now());
    this.viewTimer = setTimeout(() => {
      this.viewTimer = 0;
      if (this.store.state.jobId) this.#view();
    }, wait);
  }

  /** Read the steps that are new since the last one known, of the run and of each fellow. */
  #readRecords() {
    const { view } = this.store.state;
    if (!view) return;
    const last = view.stages.length - 1;
    this.#readStage(Math.max(last, 0), null, 1, view.step);
    const isLive = !ENDED.includes(view.state) && last > 0;
    if (!isLive || Date.now() - this.fellowsAt < FELLOW_EVERY_MS) return;
    this.fellowsAt = Date.now();
    const since = Math.max(1, view.step - FELLOW_STEPS);
    view.stages.slice(0, -1).forEach(({ stage, step }) => this.#readStage(stage, stage, since, step ?? 0));
  }

  /** At most one reading of a stage at a time; goes on until it has the step that was told. */
  async #readStage(stage, asked, since, told) {
    const { jobId } = this.store.state;
    const name = `${jobId} ${stage}`;
    this.toldTo[name] = told;
    if (this.isReading[name] || (this.readTo[name] ?? 0) >= told) return;
    this.isReading[name] = true;
    try {
      let heard;
      do {
        heard = this.toldTo[name];
        await this.#pages(jobId, asked, Math.max(since, (this.readTo[name] ?? 0) + 1), name);
        // Only what was told meanwhile asks again: a record that is late must not make a loop.
      } while (jobId === this.store.state.jobId && this.toldTo[name] > heard);
    } catch (problem) {
      this.#refuse(problem, () => this.store.dispatch({ type: "records_problem", problem }));
    } finally {
      delete this.isReading[name];
    }
  }

  async #pages(jobId, stage, from, name) {
    for (let page = 0; page < PAGES_AT_MOST; page += 1) {
      const told = await get(`/jobs/${jobId}/records`, { from_step: from, limit: PAGE, stage });
      if (jobId !== this.store.state.jobId) return;
      this.store.dispatch({ type: "records", jobId, rows: told.steps });
      this.readTo[name] = told.steps.at(-1)?.step ?? this.readTo[name];
      if (!told.omitted || !told.steps.length) return;
      from = told.steps.at(-1).step + 1;
    }
  }

  /** After a failure: whether trying again makes sense. */
  async #mayGoOn() {
    const { pool, jobId } = this.store.state;
    try {
      await get("/cluster", { pool });
      if (jobId && !this.isJobShut) await get(`/jobs/${jobId}`).catch((problem) => this.#shut(problem));
    } catch (problem) {
      this.#refuse(problem);
    }
    return !["out", "refused"].includes(this.store.state.access);
  }

  /** A job that cannot be read must not keep the pool's figures away. */
  #shut(problem) {
    if (!problem.status || problem.status === 401) throw problem;
    this.store.dispatch({ type: "view_problem", problem });
    this.isJobShut = true;
    this.#follow();
  }

  /** Signed out, not allowed or gone are states of the page; the rest is told where it happened. */
  #refuse(problem, otherwise = null) {
    if (!(problem instanceof Problem)) throw problem;
    const { status } = problem;
    if (status === 401) this.#leave("out", problem);
    else if (otherwise) otherwise();
    else if (status === 403 || status === 404 || status === 422) this.#leave("refused", problem);
  }

  #leave(access, refusal) {
    this.stream.stop();
    this.store.dispatch({ type: "access", access, refusal });
  }
}

/** What the list of jobs says of a job, from the whole view of it. */
function rowOf(view) {
  const { job_id, pool, name, model_id, state, reason, step, steps, loss, attempt } = view;
  const { created_at, started_at, ended_at, stages } = view;
  const when = { created_at, started_at, ended_at };
  return { job_id, pool, name, model_id, state, reason, step, steps, loss, attempt, fellows: stages.length, ...when };
}
