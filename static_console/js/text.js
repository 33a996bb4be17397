// Every sentence and word that the console shows. Nothing else holds text for people.

export const UNKNOWN = "–";

const plural = (n, one, many) => `${n} ${n === 1 ? one : many}`;

export const TEXT = {
  training: "Training",
  allPools: "All pools",
  pools: "Pools",
  copy: "Copy",
  copied: "Copied",
  notCopied: "Not copied: select the text",
  close: "Close",
  dismiss: "Dismiss",
  retry: "Retry",
  loading: "Asking the leader…",
  toDark: "Switch to the dark theme",
  toLight: "Switch to the light theme",
  newRun: "New training run",
  addFellow: "Add fellow",
  stale: "stale",
  unreachable: "The leader does not answer.",
  unreachableHint: "Check that it runs and that this machine reaches it.",
  unexplained: (status) => `The leader answered with status ${status} and did not explain it.`,
  documentTitle: (pool) => `Training · ${pool ?? "All pools"} · Swarm`,
};

export const CONNECTION = {
  connecting: "Connecting to the leader…",
  lost: "The connection to the leader is lost. The figures below are stale.",
  back: "Connected to the leader again.",
  since: (clock, ago) => `Last heard at ${clock} (${ago}).`,
  again: (wait) => (wait > 0 ? `Trying again in ${wait} s.` : "Trying again…"),
  now: "Try now",
};

export const SIGNED_OUT = {
  heading: "Signed out",
  sentence: "This console opens with a one-time sign-in link, good for ten minutes.",
  how: "Where you have an access token, such as the owner's on the leader's machine, this prints a new one:",
  command: "swarm signin",
  commandName: "Command that prints a sign-in link",
  label: "Or paste the link's code",
  button: "Sign in",
  note: "The session is kept in a cookie that no script can read. No token is stored in this page.",
};

export const REFUSED = {
  "invalid-input": "Not an address of this console",
  "not-found": "Not found",
  forbidden: "Not allowed",
};

export const TILES = {
  heading: "Cluster performance",
  fellows: "Fellows",
  fellowsSub: (c) => `${c.ready} ready · ${c.training} training · ${c.offline} offline`,
  cards: "GPUs",
  cardsSub: (cores, memory) => `${plural(cores, "core", "cores")} · ${memory} RAM`,
  memory: "VRAM used",
  memorySub: (total, share) => `of ${total} · ${share}`,
  step: "Step",
  stepSub: (steps) => `of ${steps}`,
  stepSubMany: (n) => `highest of ${n} runs`,
  stepTime: "Step time",
  stepTimeSub: (perMinute) => `${perMinute} steps/min`,
  loss: "Avg loss",
  lossSub: (n) => `over ${plural(n, "active run", "active runs")}`,
  noFellow: "no fellow is online",
  noRun: "no run is active",
  noStep: "no step measured yet",
  noMemory: "no card has told its memory",
  perStep: "s/step",
  perStepShort: "ms/step",
};

const IF_LOST = {
  standby: (name, fellows, taker) => `${taker ?? "another"} stands by for ${name}`,
  split: (name, fellows) => `without ${name} it is split again over ${fellows.length}`,
  wait: (name) => `it waits for ${name} or a standby`,
  fail: (name) => `it fails without ${name}`,
};

export const RUN = {
  heading: "Training run",
  pick: "Run",
  option: (job, started) => `${job.job_id} · ${job.model_id} · ${job.state} · ${started}`,
  notStarted: "not started",
  stop: "Stop",
  stopHeading: "Stop this run?",
  stopSentences: (job) => [
    `${job.job_id} (${job.model_id}) is at step ${job.step} of ${job.steps}.`,
    job.saved_step
      ? `Its fellows are free within seconds. It can be resumed from step ${job.saved_step}; what came after is lost.`
      : "Its fellows are free within seconds. Nothing of it is saved: it cannot go on from here.",
  ],
  stopKeep: "Keep running",
  stopGo: "Stop the run",
  stopped: (id) => `${id} was stopped.`,
  resume: "Resume",
  resumeHeading: "Resume this run?",
  resumeSentences: (job) => [
    `${job.job_id} goes on from step ${job.saved_step} of ${job.steps}, on the fellows that ran it.`,
    job.step > job.saved_step
      ? `Steps ${job.saved_step + 1} to ${job.step} are done again, with the same losses.`
      : "No step is done again.",
  ],
  resumeKeep: "Leave it",
  resumeGo: "Resume the run",
  resumed: (id) => `${id} goes on.`,
  wentOn: (resume) =>
    `Attempt ${resume.attempt} went on from step ${resume.step}, ` +
    `${resume.by === "hand" ? "by hand" : "by itself"}: ` +
    `${plural(resume.lost_steps, "step was", "steps were")} lost and done again. `,
  ifLost: (ready, stages, nameOf) => {
    const there = new Set(stages.map((one) => one.fellow_id));
    const sentence = ({ fellow_id, then, fellows }) => {
      const taker = fellows.find((one) => !there.has(one));
      return IF_LOST[then]?.(nameOf(fellow_id), fellows, taker && nameOf(taker));
    };
    const told = ready.map(sentence).filter(Boolean);
    return told.length ? `If it loses a fellow: ${told.join("; ")}.` : "";
  },
  step: "Step",
  stepOf: (steps) => `of ${steps}`,
  savedAt: (step) => `saved at ${step}`,
  loss: "Loss",
  smoothed: (value) => `smoothed ${value}`,
  noLoss: "no loss yet",
  fellows: "Fellows",
  live: "live",
  planned: "from the plan",
  duration: "Duration",
  perStep: (time) => `${time} per step`,
  left: (time) => `about ${time} left`,
  notBegun: "has not started",
  notPlaced: "not placed yet",
  notTimed: "no step measured yet",
  ended: (at) => `ended ${at}`,
  error: "First error",
  errorNote: "As the fellow's worker told it: text from another machine.",
  adapter: "The adapter is ready. Plain peft loads the folder this writes:",
  adapterCommand: (job) => `swarm models export ${job} --to adapter`,
  adapterName: "Command that exports the adapter",
  facts: "Run",
  model: "Model",
  revision: "Revision",
  plan: "Plan",
  pinned: "pinned",
  unpinned: "placed by the leader",
  attempt: "Attempt",
  counts: "Counts",
  verified: "Verified",
  verdict: {
    equal: (nats) => `equal to one process within ${nats} nats`,
    different: (nats) => `DIFFERENT from one process by ${nats} nats: do not trust this run`,
  },
  verifying: {
    probing: "the stages train a probe",
    waiting: "waits for a fellow that holds the whole model",
    comparing: "one fellow trains the probe in one process",
    failed: "could not be verified",
  },
  pool: "Pool",
  name: "Name",
  created: "Asked for",
};

export const STATES = {
  pending: "Pending",
  starting: "Starting",
  running: "Running",
  recovering: "Recovering",
  completed: "Completed",
  failed: "Failed",
  cancelled: "Cancelled",
};

export const CHART = {
  heading: "Loss",
  label: "Step on the loss curve",
  x: "step",
  y: "loss, nats per token",
  raw: "each step",
  smooth: "smoothed (EMA 0.8)",
  log: "Log scale",
  empty: "No loss yet: the curve begins with the first step.",
  table: "Show data as table",
  tableHide: "Hide table",
  caption: "Loss of each step, newest first",
  columns: { step: "Step", loss: "Loss", smoothed: "Smoothed" },
  page: (from, to, all) => `Rows ${from}–${to} of ${all}`,
  newer: "Newer",
  older: "Older",
  gap: "not finite",
  cursor: (step, loss, smoothed) => `Step ${step}: loss ${loss}, smoothed ${smoothed}`,
  cursorGap: (step) => `Step ${step}: loss is not finite`,
  one: (step, loss) => `One step so far: loss ${loss} at step ${step}.`,
  many: (f) =>
    `Loss went from ${f.first} at step ${f.firstStep} to ${f.last} at step ${f.lastStep}; ` +
    `smoothed ${f.smoothed}, ${f.trend}; lowest ${f.lowest} at step ${f.lowestStep}.`,
  notFinite: (step, last) =>
    ` The loss stopped being finite at step ${step}; the last finite loss was ${last}.`,
  behind: (name, step, steps) => ` ${name} is ${plural(steps, "step", "steps")} behind, at step ${step}.`,
  trend: { down: "falling", up: "rising", flat: "level" },
  failed: "The curve could not be read.",
};

export const EVALUATION = {
  heading: "Held-out loss",
  base: "Base",
  during: "During",
  trained: "Trained",
  accuracy: (share) => `${share} of next tokens right`,
  extent: (tokens, sequences) => `On ${tokens} held-out tokens in ${sequences} sequences.`,
  fell: (by) => `${by} nats lower than the base model`,
  rose: (by) => `${by} nats higher than the base model`,
  same: "the same as the base model",
  none: "No evaluation yet.",
  waiting: "after the last step",
  atStep: (step) => `at step ${step}`,
};

export const CHOSEN = {
  heading: "Chosen by the leader",
  none: "Nothing: the job file set every number itself, or the run is not placed yet.",
};

export const STAGES = {
  heading: "Stages",
  caption: "Stages of the run: layers, progress and tensor bytes planned and measured",
  region: "Stages table",
  columns: {
    stage: "Stage",
    fellow: "Fellow",
    layers: "Layers",
    phase: "Phase",
    step: "Step",
    planned: "Planned",
    peak: "Measured peak",
    difference: "Difference",
    traffic: "Sent / received",
  },
  layers: (first, last) => (last < first ? "none" : first === last ? `${first}` : `${first}–${last}`),
  onHost: (host, stage) => `${host}, stage ${stage}`,
  notMeasured: "the stage has not measured its peak yet",
  noPhase: "no worker runs",
  noStep: "no step yet",
  noTraffic: "told when the stage is done",
  notPlaced: "The run is not placed yet.",
};

export const FELLOWS = {
  heading: "Connected fellows",
  caption: "Fellows of the pool",
  region: "Fellows table",
  filter: "Show",
  filters: { all: "All", ready: "Ready", training: "Training", offline: "Offline" },
  columns: {
    hostname: "Hostname",
    id: "Id",
    pool: "Pool",
    version: "Version",
    status: "Status",
    health: "Health",
    cards: "GPUs",
    memory: "VRAM used",
    traffic: "TX / RX",
    step: "Step",
    loss: "Loss",
    seen: "Last seen",
  },
  status: { ready: "ready", training: "training", measuring: "measuring", offline: "offline" },
  empty: "No fellows connected",
  emptyFilter: "No fellow is in this state.",
  inPool: (pool) => `Nothing has joined ${pool} yet.`,
  inAll: "Nothing has joined a pool that you may see.",
  offline: "the fellow is offline",
  notTold: "the fellow has not told it",
  peak: (memory) => `peak ${memory}`,
  busy: (share) => `busy ${share}`,
  peaksTitle: "the highest of all samples between its last two reports",
  idle: "runs no stage",
  rateSoon: "known after two heartbeats",
  noLoss: "no loss yet",
  never: "never",
  noCards: "none",
  omitted: (n) => `${plural(n, "more fellow is", "more fellows are")} not shown here.`,
};

export const LOG = {
  heading: "Log",
  of: (job) => `Log of ${job}`,
  region: "Log lines",
  stage: "Stage",
  allStages: "All stages",
  stageOption: (stage, name) => `Stage ${stage} · ${name}`,
  level: "Level",
  levels: { all: "All", info: "Info", warning: "Warnings", error: "Errors" },
  word: { debug: "debug", info: "info", warning: "warn", error: "error" },
  follow: "Following",
  jump: (n) => (n > 0 ? `Jump to latest (${n} new)` : "Jump to latest"),
  copy: "Copy",
  clear: "Clear",
  close: "Close",
  open: "Open the log",
  closed: "The log is closed.",
  empty: "No lines yet.",
  emptyFilter: "No line passes the filter.",
  noJob: "Pick a run to see what its stages write.",
  noStage: (fellow, job) => `${fellow} runs no stage of ${job}: its lines are not in this log.`,
  missed: (n) => `… ${plural(n, "line", "lines")} missed`,
  missedSome: "… lines missed",
  newErrors: (n) => `${plural(n, "new error", "new errors")} in the log`,
};

export const HOW = {
  runHeading: "Start a training run",
  runFirst: "No run yet in this pool.",
  runFirstAll: "No run yet in a pool that you may see.",
  cli: "From the command line, see the plan first, then start it:",
  planCommand: (pool) => `swarm train --config job.json --plan${pool ? ` --pool ${pool}` : ""}`,
  runCommand: (pool) => `swarm train --config job.json --follow${pool ? ` --pool ${pool}` : ""}`,
  planName: "Command that shows the plan",
  runName: "Command that starts the run",
  agent: "Or ask your agent. Connect it to this leader once, then say what you want:",
  agentAddress: (origin) => `${origin}/mcp`,
  agentAddressName: "MCP address of this leader",
  agentSentence:
    "“Train SmolLM2 on my bucket for 100 steps. Show me the plan before you start it.”",
  fellowHeading: "Add a fellow",
  fellow: "This makes an invite that lives one hour and works once, and prints the line to run on the new machine:",
  inviteCommand: (pool) => `swarm invite${pool ? ` --pool ${pool}` : ""}`,
  inviteName: "Command that makes an invite",
  fellowThen: "The machine appears in the table below within seconds after it has joined.",
};
