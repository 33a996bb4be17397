// The console's state and the pure rules by which events change it. Knows no page and no network.
import { addPoints } from "./series.js";

export const LOG_KEPT = 5000;
export const ENDED = ["completed", "failed", "cancelled"];
const FROM_THE_START = ["starting", "recovering", "pending"];

/** The state before anything is known. pool: "owner/name", or null for all pools. */
export function initial(pool) {
  return {
    pool,
    pools: [],
    access: "unknown", // unknown, in, out, refused
    refusal: null,
    connection: { state: "connecting", heardAt: null, retryAt: null },
    cluster: null,
    fellows: { rows: [], isKnown: false },
    jobs: { rows: [], isKnown: false },
    jobId: null,
    view: null,
    viewProblem: null,
    series: {}, // stage -> {steps, losses}
    seriesProblem: null,
    selectedFellow: null,
    log: emptyLog(),
  };
}

const emptyLog = () => ({ lines: [], next: 0, errors: 0, cleared: 0, isKnown: false, problem: null });

/** The next state. event: {type, ...}; an unknown type changes nothing. */
export function reduce(state, event) {
  const rule = RULES[event.type];
  return rule ? rule(state, event) : state;
}

const RULES = {
  pools: (state, { rows }) => ({ ...state, pools: rows }),
  access: (state, { access, refusal }) => ({ ...state, access, refusal: refusal ?? null }),
  connection: (state, { change }) => ({ ...state, connection: { ...state.connection, ...change } }),
  snapshot,
  cluster: (state, { data }) => ({ ...state, cluster: data }),
  fellows: (state, { data }) => ({ ...state, fellows: withFellows(state.fellows, data) }),
  jobs: (state, { data }) => withJobs(state, data),
  pick: (state, { jobId }) => picked(state, jobId),
  view: (state, { data }) => withView(state, data),
  view_problem: (state, { problem }) => ({ ...state, viewProblem: problem }),
  records: (state, { jobId, rows }) => (jobId === state.jobId ? withSteps(state, rows) : state),
  records_problem: (state, { problem }) => ({ ...state, seriesProblem: problem }),
  logs: (state, { jobId, rows, missed }) =>
    jobId === state.jobId ? { ...state, log: withLines(state.log, rows, missed) } : state,
  logs_problem: (state, { problem }) => ({ ...state, log: { ...state.log, problem } }),
  log_clear: (state) => ({ ...state, log: { ...state.log, lines: [], cleared: state.log.next } }),
  log_reset: (state) => ({ ...state, log: emptyLog() }),
  select_fellow: (state, { id }) => ({ ...state, selectedFellow: id }),
};

function snapshot(state, { data }) {
  const rows = state.fellows.rows;
  const told = new Map(data.fellows.map((row) => [row.fellow_id, row]));
  const kept = rows.filter((row) => told.has(row.fellow_id)).map((row) => told.get(row.fellow_id));
  const seen = new Set(kept.map((row) => row.fellow_id));
  const fresh = data.fellows.filter((row) => !seen.has(row.fellow_id));
  const next = {
    ...state,
    access: "in",
    cluster: data.cluster,
    fellows: { rows: [...kept, ...fresh], isKnown: true },
  };
  return withJobs(next, { changed: data.jobs });
}

/** A known fellow keeps its place in the table; a new one comes last. */
function withFellows(fellows, { changed, gone }) {
  const told = new Map(changed.map((row) => [row.fellow_id, row]));
  const rows = fellows.rows
    .filter((row) => !gone.includes(row.fellow_id))
    .map((row) => told.get(row.fellow_id) ?? row);
  const seen = new Set(rows.map((row) => row.fellow_id));
  return { ...fellows, rows: [...rows, ...changed.filter((row) => !seen.has(row.fellow_id))] };
}

/** A job that falls off the leader's list stays here: the list is the newest hundred. */
function withJobs(state, { changed }) {
  return changed.reduce(withJob, { ...state, jobs: { ...state.jobs, isKnown: true } });
}

function withJob(state, told) {
  const at = state.jobs.rows.findIndex((one) => one.job_id === told.job_id);
  const known = at < 0 ? null : state.jobs.rows[at];
  const row = forward(known, told);
  const rows = at < 0 ? [row, ...state.jobs.rows] : state.jobs.rows.with(at, row);
  const view = state.view?.job_id === told.job_id ? { ...state.view, ...shared(row) } : state.view;
  return { ...state, view, jobs: { ...state.jobs, rows } };
}

/** What a row and the whole view both say of a job. */
function shared(row) {
  const { fellows: _, ...rest } = row;
  return rest;
}

/** A late report never moves a job back: step and loss follow the highest step of one attempt. */
function forward(known, told) {
  // A row of the list does not name the attempt: the one known from the whole view holds on.
  const row = { ...told, attempt: told.attempt ?? known?.attempt ?? null };
  if (!known || told.step >= known.step || isAgain(known, row)) return row;
  return { ...row, step: known.step, loss: known.loss };
}

const isAgain = (known, told) =>
  (known.attempt != null && told.attempt > known.attempt) || FROM_THE_START.includes(told.state);

function picked(state, jobId) {
  if (jobId === state.jobId) return state;
  const fresh = { view: null, viewProblem: null, series: {}, seriesProblem: null, log: emptyLog() };
  return { ...state, ...fresh, jobId };
}

function withView(state, told) {
  if (told.job_id !== state.jobId) return state;
  const known = state.view ?? state.jobs.rows.find((one) => one.job_id === told.job_id) ?? null;
  const { step, loss } = forward(known, told);
  const stages = told.stages.map((stage) => stageForward(state.view, stage));
  // Only where records were read: a curve must not begin with its last point.
  const ends = stages.filter((one) => state.series[one.stage] && one.step && one.loss !== null);
  const series = withPoints(state.series, ends);
  return { ...state, series, view: { ...told, step, loss, stages }, viewProblem: null };
}

function stageForward(view, told) {
  const known = view?.stages.find((one) => one.stage === told.stage);
  const isLate = known?.step != null && (told.step ?? 0) < known.step && known.fellow_id === told.fellow_id;
  return isLate && !FROM_THE_START.includes(view.state)
    ? { ...told, step: known.step, loss: known.loss }
    : told;
}

const withSteps = (state, rows) => ({
  ...state,
  series: withPoints(state.series, rows),
  seriesProblem: null,
});

/** Points of several stages. A stage's newest step is drawn before its record is read. */
function withPoints(series, rows) {
  const next = { ...series };
  for (const [stage, points] of Object.entries(Object.groupBy(rows, (row) => row.stage))) {
    next[stage] = addPoints(next[stage], points);
  }
  return next;
}

/** Lines get a number of their own, so that a windowed list can tell them apart. */
function withLines(log, rows, missed = 0) {
  let next = log.next;
  const hole = missed ? [{ key: next++, missed, level: "info", at: null, stage: null }] : [];
  const fresh = rows.map((row) => ({ ...row, key: next++ }));
  const errors = log.errors + rows.filter((row) => row.level === "error").length;
  const lines = [...log.lines, ...hole, ...fresh].slice(-LOG_KEPT);
  return { ...log, lines, next, errors, isKnown: true, problem: null };
}

/** Jobs as the picker lists them: running first, then the newest. */
export function sortedJobs(rows) {
  const isOver = (row) => (ENDED.includes(row.state) ? 1 : 0);
  return [...rows].sort((a, b) => isOver(a) - isOver(b) || b.created_at - a.created_at);
}

/** A holder of the state: dispatch() applies the rules, listeners hear once a frame. */
export function createStore(state, schedule = requestAnimationFrame) {
  const listeners = new Set();
  let isWaiting = false;
  const tell = () => {
    isWaiting = false;
    listeners.forEach((listener) => listener(state));
  };
  return {
    get state() {
      return state;
    },
    dispatch(event) {
      const next = reduce(state, event);
      if (next === state) return;
      state = next;
      if (!isWaiting) schedule(tell);
      isWaiting = true;
    },
    listen: (listener) => listeners.add(listener),
  };
}
