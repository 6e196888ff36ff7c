// What happened over time: one graph, the table below it, and the list of events. The gateway sends counts per interval, which
// can be added up; rates and percentiles are made here.

import { $, ask, brief, count, fill, mark, moment, OUTCOMES, put, several, short, shown, SIGNALS } from "./parts.js";

const COLOURS = ["--mark", "--warm", "--good", "--more", "--bad", "--soft"];
const ENDS = {
  completed: "--good", client_gone: "--mark", shed: "--warm", engine_refused: "--more", engine_failed: "--bad",
};
const POLL_MS = 5000;
let plot = null;
let kind = ""; // what the plot shows, without its data
let span = [0, 1]; // the times at its ends
let asked = 0;
let last = null;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const form = () => Object.fromEntries(new FormData($("graph-form")));

// The q-quantile of counts by bucket, each [bucket, count]; within a bucket, values are taken to be spread evenly.
function quantile(buckets, q, bounds) {
  const total = buckets.reduce((sum, [, number]) => sum + number, 0);
  if (!total) return null;
  let rank = q * total;
  for (const [at, number] of buckets) {
    if (rank <= number) {
      const low = at ? bounds[at - 1] : 0;
      return at < bounds.length ? low + (bounds[at] - low) * (rank / number) : low;
    }
    rank -= number;
  }
  return bounds.at(-1);
}

function add(groups) {
  const sum = { calls: 0, not_served: 0 };
  const buckets = { first_token: new Map(), queue: new Map() };
  for (const group of groups) {
    for (const name in sum) sum[name] += group[name];
    for (const name in buckets) for (const [bucket, number] of group[name]) buckets[name].set(bucket, (buckets[name].get(bucket) || 0) + number);
  }
  for (const name in buckets) sum[name] = [...buckets[name]].sort((a, b) => a[0] - b[0]);
  return sum;
}

const NUMBER = { scale: "y", text: (value) => (value === null || value === undefined ? "–" : count(Number(value.toPrecision(3)))) };
const SECONDS = { scale: "y", text: brief };
const SHARE = { scale: "share", text: (value) => (value === null || value === undefined ? "–" : `${Math.round(value * 100)} %`) };

// The lines of the graph: name, colour, unit, and the value of an interval.
function lines(past, { what, by }) {
  const rate = (value, row) => (value === null ? null : value / row.seconds);
  const names = by ? [...new Set(past.rows.flatMap((row) => Object.keys(row.groups)))].slice(0, 12) : [];
  const each = (unit, value) => names.map((name, at) => [name, COLOURS[at % COLOURS.length], unit, (row) => (row.groups[name] ? value(row.groups[name], row) : null)]);
  if (what === "tokens") {
    return [
      ["computed by the engines", "--bad", NUMBER, (row) => rate(row.computed === null ? null : row.computed + row.uncounted, row)], ["received from the engines", "--good", NUMBER, (row) => rate(row.received, row)],
      ["engines busy", "--mark", SHARE, (row) => row.busy],
    ];
  }
  if (what === "live") return [["live", "--mark", NUMBER, (row) => row.live], ["waiting for a backend", "--warm", NUMBER, (row) => row.waiting]];
  if (what === "calls") {
    if (by) return each(NUMBER, (group, row) => rate(group.calls, row));
    const ends = [...new Set(past.rows.flatMap((row) => Object.keys(row.ends)))];
    return ends.map((name) => [OUTCOMES[name] || name, ENDS[name] || "--soft", NUMBER, (row) => rate(row.ends[name] || 0, row)]);
  }
  const at = what === "first" ? "first_token" : "queue";
  if (by) return each(SECONDS, (group) => quantile(group[at], 0.95, past.bounds));
  return [["median", "--mark", SECONDS, (row) => quantile(row.every[at], 0.5, past.bounds)], ["p95", "--warm", SECONDS, (row) => quantile(row.every[at], 0.95, past.bounds)]];
}

const TITLES = {
  tokens: "Tokens per second", first: "Time to first token", queue: "Time in the queue", calls: "Calls that ended, per second", live: "Calls at a time",
};

function draw(past) {
  const chosen = form();
  const drawn = lines(past, chosen);
  const box = $("chart");
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") }, font: "12px system-ui" };
  const scales = new Set(drawn.map(([, , unit]) => unit.scale));
  const unit = drawn[0]?.[2] || NUMBER;
  const text = (of) => (_, values) => values.map((value) => of.text(value));
  const now = Date.now() / 1000;
  span = [Math.max(now - Number(chosen.seconds), Math.min(past.since || now, now - 60)), now]; // no empty hours before the start
  const data = [past.rows.map((row) => row.end), ...drawn.map(([, , , value]) => past.rows.map((row) => value(row)))];
  describe(past, drawn);
  const wanted = JSON.stringify([chosen.what, chosen.by, drawn.map(([name]) => name), colour("--ink"), past.rows.length < 40]);
  if (plot && kind === wanted) { plot.setData(data); return; } // the pointer's place stays
  kind = wanted;
  const options = {
    width: box.clientWidth || 600, height: 240, cursor: { drag: { x: false, y: false } },
    scales: {
      x: { time: true, range: () => span },
      y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] }, share: { range: [0, 1.02] }, // a line at 100 % is seen whole
    },
    axes: [
      { ...axis, space: 80, values: (_, marks, __, ___, step) => marks.map((at) => mark(at, step)) },
      { ...axis, scale: "y", size: 70, values: text(unit), label: `${TITLES[chosen.what]}${chosen.by && (chosen.what === "first" || chosen.what === "queue") ? ", p95" : ""}`, labelFont: "12px system-ui", labelSize: 18 },
      ...(scales.has("share") ? [{ ...axis, scale: "share", side: 1, grid: { show: false }, values: text(SHARE), size: 60 }] : []),
    ],
    series: [
      { label: "time", value: (_, at) => (at ? moment(at) : "latest") },
      ...drawn.map(([name, hue, of]) => ({
        label: name, stroke: colour(hue), width: 2, scale: of.scale, dash: of === SHARE ? [4, 4] : undefined, spanGaps: true,
        points: { show: past.rows.length < 40 }, value: (self, value, line, at) => of.text(at === null ? self.data[line].at(-1) : value), // the latest where nobody points
      })),
    ],
  };
  if (plot) plot.destroy();
  box.replaceChildren();
  plot = new uPlot(options, data, box);
}

// The same in words, for who does not see the picture.
function describe(past, drawn) {
  const row = past.rows.at(-1);
  if (!row) { put($("chart-words"), "no data yet"); return; }
  const now = drawn.map(([name, , unit, value]) => `${name} ${unit.text(value(row))}`);
  const { what } = form();
  const guessed = what === "tokens" && past.rows.some((each) => each.uncounted && each.computed !== null);
  put($("chart-words"), `${TITLES[what]}, in intervals of ${brief(past.length_s || row.seconds)}. Latest: ${now.join(", ") || "nothing ended"}.${(what === "tokens" || what === "live") && form().by ? ` The graph is not split; the table is, by ${form().by}.` : ""}${guessed ? " Engines that do not count their tokens are taken to compute those that they send." : ""}`);
}

function table(past) {
  const { by } = form();
  put($("group-title"), by ? by[0].toUpperCase() + by.slice(1) : "Of");
  const names = by ? [...new Set(past.rows.flatMap((row) => Object.keys(row.groups)))] : [];
  const groups = names.map((name) => [name, add(past.rows.flatMap((row) => (row.groups[name] ? [row.groups[name]] : [])))]);
  groups.sort((a, b) => b[1].calls - a[1].calls);
  groups.push(["all calls", add(past.rows.map((row) => row.every))]);
  const time = (group, at, q) => [brief(quantile(group[at], q, past.bounds)), "number"];
  fill($("groups"), groups, ([name]) => name, ([name, group]) => [
    [name, name === "all calls" ? "soft" : "name"], [count(group.calls), "number"],
    [group.calls ? `${Number(((100 * group.not_served) / group.calls).toPrecision(2))} %` : "–", group.not_served ? "number bad" : "number"],
    time(group, "first_token", 0.5), time(group, "first_token", 0.95), time(group, "queue", 0.5), time(group, "queue", 0.95),
  ]);
}

const STEPS = {
  abort: "told again to stop", wait: "has no way to be told to stop; waiting", degraded: "suspected: other backends are preferred",
  quarantined: "quarantined: gets no calls", restarting: "is being restarted", canary: "is tested with one call", healthy: "healthy again",
};
const EVENTS = {
  backend_changed: (row) => row.change,
  divergence_alarm_changed: (row) => (row.state === "raised" ? `alarm raised: it computes tokens that nobody receives (${SIGNALS[row.signal] || row.signal})` : "alarm ended"),
  ladder_step_taken: (row) => `${STEPS[row.step] || row.step}${row.reason ? `: ${row.reason}` : ""}${row.id ? ` (call ${short(row.id)})` : ""}`,
  zombie_found: (row) => `still computes call ${short(row.id)}, whose client has left`,
  zombie_gone: (row) => `stopped call ${short(row.id)} after ${brief(row.after_s)}${row.tokens ? `, ${several(row.tokens, "token")} too late` : ""}`,
  orphans_found: (row) => `runs ${several(row.count, "call")} that this gateway did not send`,
  calls_evicted: (row) => `lost its ${several(row.calls, "live call")}: ${row.reason}`,
  call_killed: (row) => `an operator killed call ${short(row.id)} of ${row.tenant}`,
  engine_exited: () => "its process ended; it is started again",
  config_reloaded: () => "the configuration was reloaded",
};

// What is told of many calls at once, so that it does not push the rest out of sight.
const TOGETHER = {
  zombie_found: (rows) => `still computes ${listed(rows)}, whose clients have left`,
  zombie_gone: (rows) => `stopped ${listed(rows)}, too late`,
  abort: (rows) => `told again to stop, ${several(rows.length, "time")}: ${listed(rows)}`,
  wait: (rows) => `has no way to be told to stop; waiting for ${listed(rows)}`,
  call_killed: (rows) => `an operator killed ${listed(rows)}`,
};
const TOGETHER_S = 60;

function listed(rows) {
  const ids = [...new Set(rows.map((row) => row.id))];
  return `${several(ids.length, "call")} (${ids.slice(0, 3).map(short).join(", ")}${ids.length > 3 ? ", …" : ""})`;
}

function together(rows) {
  const groups = [];
  const open = new Map();
  rows.forEach((row, at) => {
    const kind = TOGETHER[row.event] ? row.event : TOGETHER[row.step] ? row.step : "";
    const key = `${kind} ${row.backend}`;
    const group = kind && open.get(key);
    if (group && row.at - group.rows[0].at < TOGETHER_S) { group.rows.push(row); return; }
    const made = { kind, key: `${row.at} ${row.event} ${row.id || at}`, rows: [row] };
    groups.push(made);
    if (kind) open.set(key, made);
  });
  return groups.reverse();
}

function events(rows) {
  fill($("events"), together(rows), (group) => group.key, ({ kind, rows: told }) => {
    const [row] = told;
    const words = told.length > 1 ? TOGETHER[kind](told) : EVENTS[row.event] ? EVENTS[row.event](row) : row.event;
    return [[moment(row.at)], [shown(row.backend), "name"], [words, `why ${row.state === "raised" || row.step === "quarantined" || /^down/.test(row.change) ? "bad" : row.state === "ended" || row.step === "healthy" || row.change === "up" ? "good" : ""}`.trim()]];
  });
}

async function look() {
  const { seconds, by } = form();
  asked = Date.now();
  try {
    const past = await ask("GET", `api/history?seconds=${seconds}&by=${by || "model"}`);
    past.rows = past.rows.filter((row) => row.seconds > 0);
    last = past;
    const known = past.since ? Date.now() / 1000 - past.since : 0;
    put($("remembered"), known < Number(seconds) * 0.9 ? `known since ${past.since ? moment(past.since) : "now"}` : "");
    draw(past);
    table(past);
    events(past.events);
  } catch { /* the header shows the state of the connection */ }
}

// Called with each glance, so that nothing is asked while the gateway is gone.
export function refresh() {
  const every = last && last.length_s ? POLL_MS * 4 : POLL_MS;
  if (Date.now() - asked >= every) look();
}

export function start() {
  $("graph-form").addEventListener("change", look);
  $("graph-form").addEventListener("submit", (event) => event.preventDefault());
  new ResizeObserver(() => { if (plot && $("chart").clientWidth) plot.setSize({ width: $("chart").clientWidth, height: 240 }); }).observe($("chart"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (last) draw(last); });
}
