// The dashboard: the overview arrives as server-sent events, the page of live calls and the history are polled beside it.

import { $, ask, brief, count, doing, element, fill, headers, lasting, moment, OUTCOMES, put, say, several, short, shown, SIGNALS } from "./parts.js";
import * as graph from "./graph.js";

const PAGE = 50;
const RETRY_MS = 1000;
const MONEY_MS = 10000;
const IDS_MAX = 200; // a kill names its calls up to this many, else their filter
const COLUMNS = [
  ["id", "Call", ""], ["tenant", "Tenant", "tenant"], ["model", "Model", "model"], ["backend", "Backend", "backend"], ["phase", "Phase", "phase"],
  ["age_s", "Age (s)", "age"], ["tokens_out", "Tokens out", "tokens"], ["tokens_per_s", "Tokens/s", "rate"], ["waits_for", "Waiting for", ""],
  ["idle_s", "Idle (s)", "idle"], ["deadline_left_s", "Deadline (s)", "deadline"], ["tokens_in", "Tokens in", ""], ["client", "Client", "client"], ["slot", "Slot", ""],
];
const NUMBERS = new Set(["slot", "age_s", "tokens_in", "tokens_out", "tokens_per_s", "idle_s", "deadline_left_s"]);
// Where there is no room, a click on the call shows the rest.
const KINDS = { tenant: "name", model: "name", backend: "name", waits_for: "soft less waits", idle_s: "extra", deadline_left_s: "extra", tokens_per_s: "extra", tokens_in: "rest", client: "rest", slot: "rest" };
const ASCENDING = new Set(["tenant", "model", "backend", "phase", "client", "deadline"]); // the others begin with the largest

const view = { sort: "age", offset: 0, total: 0, filter: {}, asking: false, open: null, report: null, lostAt: null };

// Glances

async function watch() {
  for (;;) {
    try {
      const answer = await fetch("api/events", { headers: headers() });
      if (answer.status === 401) { locked(sessionStorage.getItem("token") !== null); await pause(); continue; }
      if (!answer.ok) throw new Error(`it returned status ${answer.status}`);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const events = (text + value).split("\n\n");
        text = events.pop();
        if (events.length) glance(JSON.parse(events.at(-1).slice(6)));
      }
      throw new Error("it closed the connection");
    } catch (error) {
      lost(error instanceof TypeError ? "it does not answer" : error.message);
    }
    await pause();
  }
}

const pause = () => new Promise((again) => setTimeout(again, RETRY_MS));

// The pages without figures: the token is missing or wrong, or the gateway is gone.

function locked(given) {
  document.body.className = "locked";
  $("login").hidden = false;
  $("gone").hidden = true;
  put($("login-why"), `${given ? "The gateway refused this admin token." : "This gateway requires its admin token."} It is what admin_token_env, admin_token_file or admin_token_command in its configuration refers to.`);
  put($("state"), "signed out");
  $("state").className = "lost";
  signal(1, "sign in");
}

function lost(why) {
  view.lostAt = view.lostAt || new Date();
  const seen = document.body.className !== "waiting" && document.body.className !== "locked";
  if (seen) document.body.className = "stale";
  put($("state"), "disconnected");
  $("state").className = "lost";
  $("gone").hidden = false;
  $("login").hidden = true;
  put($("gone"), `No connection to the gateway since ${moment(view.lostAt / 1000)}: ${why}. Trying again every second.${seen ? " What is shown below is from before." : ""}`);
  signal(1, "no connection");
}

// The tab's title and icon show what needs attention.
function signal(number, words) {
  const title = number ? `⚠ ${words} – hangup` : "hangup";
  if (document.title !== title) document.title = title;
  const icon = `data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Ccircle cx='8' cy='8' r='7' fill='%23${number ? "c4281c" : "17804a"}'/%3E%3C/svg%3E`;
  if ($("icon").href !== icon) $("icon").href = icon;
}

function glance(now) {
  const first = document.body.className === "waiting" || document.body.className === "locked";
  document.body.className = "";
  view.lostAt = null;
  $("login").hidden = $("gone").hidden = true;
  put($("state"), `${now.not_ready ? `not ready: ${now.not_ready}` : "ready"}, version ${now.version}`);
  $("state").className = now.not_ready ? "lost" : "";
  const ill = now.backends.filter((row) => condition(row).kind === "bad");
  signal(now.alarms.length + ill.length + (now.not_ready ? 1 : 0), now.alarms.length ? several(now.alarms.length, "alarm") : ill.length ? `${several(ill.length, "backend")} out` : "not ready");
  overview(now);
  alarms(now.alarms, now.gateways_silent || now.workers_silent || [], now.gateways_silent ? "gateway" : "worker");
  backends(now.backends);
  const ends = Object.entries(now.outcomes).filter(([name]) => name !== "shed" && name !== "refused");
  const rows = [...ends.map(([name, calls]) => [OUTCOMES[name] || name, calls]), ...Object.entries(now.refusals).map(([name, calls]) => [refusal(name, now.refusal_words[name]), calls])];
  fill($("refusals"), rows, (row) => row[0], (row) => [[row[0], "whole"], [count(row[1]), "number"]]);
  zombies(now.zombies, now.backends.reduce((sum, row) => sum + row.zombies.length, 0));
  jobs(now.jobs);
  left(now.left);
  calls();
  graph.refresh();
  if (first) money();
  if (view.open && !view.open.ended) show(view.open.id, true);
}

// Why calls were refused, as their clients were told, and by which name it is found in log and documentation.
function refusal(name, words = "") {
  const told = words.replace(/(; retry later)?\.$/, "");
  return told ? `refused: ${told[0].toLowerCase()}${told.slice(1)} (${name})` : `refused: ${name}`;
}

function overview(now) {
  const { rates } = now;
  const nobody = rates.computed_per_s === null ? "–" : count(Math.round(Math.max(rates.computed_per_s + rates.uncounted_per_s - rates.received_per_s, 0)));
  const total = view.report && view.report.total;
  const values = {
    "Live calls": count(now.live), "Waiting": count(now.waiting), "Connections": count(now.connections),
    "Engines busy": rates.busy === null ? "–" : `${Math.round(rates.busy * 100)} %`,
    "Tokens/s received": count(Math.round(rates.received_per_s)), "Tokens/s nobody receives": nobody,
    "Tokens delivered, 24 h": total ? count(total.tokens_delivered) : "–", "Tokens wasted, 24 h": total ? count(total.tokens_wasted) : "–",
  };
  const list = $("tiles");
  for (const [name, value] of Object.entries(values)) {
    let box = [...list.children].find((child) => child.dataset.name === name);
    if (!box) {
      box = element("div", undefined, { "data-name": name });
      box.append(element("dt", name), element("dd"));
      list.append(box);
    }
    put(box.lastChild, value);
  }
}

function alarms(rows, silent, kind) {
  const words = rows.map((row) => {
    const who = row.suspects.tenants.length ? ` Suspected: calls of ${row.suspects.tenants.join(", ")} that ended early.` : "";
    return `Backend ${row.backend} computes tokens that nobody receives (${SIGNALS[row.signal] || row.signal}).${who}`;
  });
  if (silent.length) words.push(`${several(silent.length, kind)} did not answer: ${silent.join(", ")}. Their calls are missing here.`);
  fill($("alarms"), words, (text) => text, () => [], (text) => element("p", text));
}

// Backends

// One state in words; alarm, recovery and health do not stand beside each other.
function condition(row) {
  const inDns = row.state.startsWith("warming up") ? "warming up: answers a test call first" : row.state.startsWith("not in DNS") ? "no longer in DNS: gets no calls" : "";
  const ladder = { quarantined: "quarantined: gets no calls", restarting: "restarting", canary: "being tested with one call" }[row.ladder];
  if (row.drained) return { kind: "warm", name: "drained", words: row.in_flight ? "drained by an operator, the last calls run" : "drained by an operator: gets no calls" };
  if (ladder) return { kind: "bad", name: row.ladder, words: ladder };
  if (row.state.endsWith("down")) return { kind: "bad", name: "down", words: "down: does not answer" };
  if (row.state.endsWith("no answer yet")) return { kind: "warm", name: "unanswered", words: "no answer yet" };
  if (inDns) return { kind: "warm", name: "listed", words: inDns };
  if (row.alarm) return { kind: "bad", name: "alarm", words: "serves, but also computes for nobody" };
  if (row.paused_s !== null) return { kind: "warm", name: "paused", words: `refuses calls for ${lasting(row.paused_s)}` };
  if (row.ladder === "degraded") return { kind: "warm", name: "degraded", words: "suspected: others are preferred" };
  return { kind: "good", name: "serving", words: "serving" };
}

const LIMITED_BY = {
  slots: "its number of slots", late_first_tokens: "learned: with more calls, first tokens came late",
  engine_reports_waiting: "learned: the engine said that calls wait in it", engine_refused: "learned: the engine refused more",
  slow_steps: "learned: with more calls, tokens came too slowly",
};

function limitWords(row) {
  if (row.quarantined) return "none while it is quarantined";
  if (row.limit === null) return "none: nothing shows that calls queue in it";
  return `${count(row.limit)}: ${LIMITED_BY[row.limited_by] || (row.limit_learned ? "learned" : "configured")}`;
}

function reasonWords(row) {
  const parts = [];
  if (row.ladder_reason) parts.push(`${row.ladder_reason} (for ${lasting(row.ladder_s)})`);
  if (row.fault) parts.push(row.fault);
  if (row.alarm && row.ladder !== "healthy" && row.ladder) parts.push("computes tokens that nobody receives");
  if (row.zombies.length) parts.push(`${several(row.zombies.length, "zombie")}`);
  if (row.orphans) parts.push(`${several(row.orphans, "call")} of others`);
  return parts.join("; ") || "–";
}

function backends(rows) {
  const cells = (row) => {
    const is = condition(row);
    return [
      [row.name], [row.engine], [is.words, `state ${is.kind} ${is.name}`], [reasonWords(row), "why"], [count(row.in_flight), "number"], [limitWords(row), "why"],
      [row.busy === null ? "–" : `${Math.round(row.busy * 100)} %`, "number"], [row.tokens_computed === null ? "–" : count(row.tokens_computed), "number less"],
    ];
  };
  fill($("backends"), rows, (row) => row.name, cells, (row) => doing("Drain", `Drain ${row.name}`, async (button) => {
    const on = button.textContent === "Drain";
    await ask(on ? "PUT" : "DELETE", `api/backends/${encodeURIComponent(row.name)}/drain`);
    say(`Backend ${row.name} is ${on ? "drained and gets no new calls" : "no longer drained"}.`);
  }, calls));
  for (const row of rows) {
    const button = $("backends").querySelector(`[data-key="${CSS.escape(row.name)}"] button`);
    const word = row.drained ? "Undrain" : "Drain";
    put(button, word);
    button.setAttribute("aria-label", `${word} ${row.name}`);
  }
}

// Whether an engine has stopped the work of an ended call.
const RELEASES = {
  verified: ["stopped, verified", "good"], restarted: ["stopped by a restart", "good"], unverified: ["disconnected, stop not verified", "warm"],
  pending: ["waiting for confirmation", "soft"], zombie: ["still running", "bad"],
};
const CAUSES = {
  fin: "the client closed", reset: "the client reset", silence: "the client's host is gone", write_stall: "the client stopped reading", killed: "killed by an operator",
};

function zombies(rows, now) {
  put($("zombies-count"), `(${count(now)} now${rows.length < now ? `, the latest ${rows.length} listed` : ""})`);
  const end = (row) => (row.lived_s === null ? "" : ` after ${lasting(row.lived_s)}`);
  fill($("zombies"), rows, (row) => row.id, (row) => [
    named(row.id), [shown(row.tenant)], [CAUSES[row.cause] || shown(row.cause)], [row.backend], [shown(row.slot), "number"], [`${lasting(row.ended_s_ago)} ago`, "number"],
    [row.tokens_since === null ? "–" : count(row.tokens_since), "number"], [`${row.aborts} ×`, "number"],
    [`${RELEASES[row.release][0]}${end(row)}`, RELEASES[row.release][1]],
  ]);
}

function left(rows) {
  fill($("left"), rows, (row) => row.id, (row) => [
    named(row.id), [shown(row.tenant)], [row.backend], [CAUSES[row.cause] || row.cause], [`${lasting(row.ended_s_ago)} ago`, "number"], [count(row.tokens_out), "number"],
    RELEASES[row.release] || ["not started", "soft"],
  ]);
}

function jobs(known) {
  put($("jobs-count"), known.total > known.rows.length ? `(the newest ${known.rows.length} of ${count(known.total)})` : `(${count(known.total)})`);
  const left = (row) => (row.lease_left_s !== null ? lasting(row.lease_left_s) : row.expires_at ? lasting(row.expires_at - row.created_at - row.age_s) : "–");
  const cells = (row) => {
    const ended = row.items.total - row.items.queued - row.items.claimed;
    const share = row.items.total ? Math.floor((ended / row.items.total) * 100) : 0;
    return [
      [short(row.id), "id", undefined, row.id], [row.tenant], [row.status, row.status === "running" ? "good" : "warm"], [`${share} %`, `share p${Math.round(share / 10) * 10}`],
      [count(row.items.total), "number"], [count(row.items.running), "number"], [count(row.items.errored), "number"],
      [lasting(row.age_s), "number less"], [left(row), "number"], [row.what, "less"],
    ];
  };
  fill($("jobs"), known.rows, (row) => row.id, cells, (row) => doing("Cancel", `Cancel ${row.id}`, async () => {
    if (confirm(`Cancel job ${row.id} of ${row.tenant} and stop its work in the engines?`)) {
      const job = await ask("DELETE", `api/jobs/${encodeURIComponent(row.id)}`);
      say(`Job ${job.id} is ${job.status}${job.items.claimed ? `; waiting for the engines to stop ${several(job.items.claimed, "item")}` : ""}.`);
    }
  }, calls));
}

// Live calls

const given = () => Object.entries(view.filter).filter(([, value]) => value !== "" && value !== undefined);
const query = (extra) => new URLSearchParams([...given(), ...Object.entries(extra)]).toString();
const FILTERS = { older_than_s: (value) => `older than ${value} s` };
const filterWords = () => given().map(([name, value]) => (FILTERS[name] ? FILTERS[name](value) : `${name} ${value}`)).join(", ");

async function calls() {
  if (view.asking) return;
  view.asking = true;
  try {
    const page = await ask("GET", `api/calls?${query({ sort: view.sort, offset: view.offset, limit: PAGE })}`);
    put($("filter-error"), "");
    listed(page);
  } catch (error) {
    if (error.status === 400) { // the filter: nothing is listed under it
      put($("filter-error"), error.message);
      listed({ calls: [], total: 0, live: 0, offset: 0 });
    }
  } finally {
    view.asking = false;
  }
}

const kindOf = (key) => `${NUMBERS.has(key) ? "number " : ""}${KINDS[key] || ""}`.trim();

// The cell of a call's id: a click shows the call.
const named = (id) => [short(id), "id", () => show(id), id];

function listed(page) {
  view.total = page.total;
  put($("calls-count"), `(${count(page.total)}${page.total === page.live ? "" : ` of ${count(page.live)}`})`);
  put($("page"), page.total ? `${page.offset + 1}–${Math.min(page.offset + PAGE, page.total)} of ${count(page.total)}` : "none");
  $("back").disabled = view.offset === 0;
  $("forth").disabled = view.offset + PAGE >= page.total;
  const words = filterWords();
  $("kill-chosen").disabled = !words || !page.total;
  put($("kill-chosen"), words && page.total ? `Kill all ${count(page.total)} of these` : "Kill all of these");
  $("kill-chosen").title = words ? `All calls with ${words}` : "Filter first: only what a filter names can be killed at once";
  const cells = (row) => COLUMNS.map(([key]) => (key === "id" ? named(row.id) : [shown(row[key]), kindOf(key)]));
  fill($("calls-body"), page.calls, (row) => row.id, cells, (row) => doing("Kill", `Kill ${row.id}`, () => kill(row), calls));
}

async function kill(row) {
  if (confirm(`Kill call ${row.id} of ${row.tenant} and stop its work in the engine?`)) {
    say(`Killing call ${row.id}; waiting for the engine to confirm …`);
    killed((await ask("DELETE", `api/calls/${encodeURIComponent(row.id)}`)).killed);
  }
}

function killed(rows) {
  if (rows.length !== 1) {
    const gone = rows.filter((row) => row.verified).length;
    say(`Killed ${several(rows.length, "call")}; the engines confirmed ${count(gone)} of them stopped.`);
    return;
  }
  const [row] = rows;
  const [words] = RELEASES[row.release] || ["had not started"];
  say(`Killed call ${row.id}${row.connection_cut ? ", connection to the engine cut" : ""}${row.abort_sent ? ", abort sent" : ""}. Engine: ${words}.`);
}

// Kills what is listed: the calls are named before the question, and exactly these are killed.
async function killChosen() {
  const words = filterWords();
  const chosen = (await ask("DELETE", `api/calls?${query({ dry_run: 1 })}`)).would_kill.map((row) => row.id);
  if (!chosen.length) { say("No live call matches the filter."); return; }
  if (!confirm(`Kill ${several(chosen.length, "call")} (${words}) and stop their work in the engines?`)) return;
  say(`Killing ${several(chosen.length, "call")}; waiting for the engines to confirm …`);
  killed((await ask("DELETE", `api/calls?${chosen.length <= IDS_MAX ? new URLSearchParams({ id: chosen.join(",") }) : query({})}`)).killed);
}

// One call

const FACTS = [
  ["Outcome", (row) => (row.outcome ? `${OUTCOMES[row.outcome] || row.outcome}${row.cause && row.cause !== row.outcome ? ` (${CAUSES[row.cause] || row.cause})` : ""}` : `live: ${row.phase}`)],
  ["Detail", (row) => row.detail], ["Status", (row) => row.status], ["Engine", (row) => (RELEASES[row.release] ? RELEASES[row.release][0] : "")],
  ["Waiting for", (row) => row.waits_for], ["Tenant", (row) => row.tenant], ["Client", (row) => row.client], ["Model", (row) => row.model], ["API", (row) => row.route],
  ["Backend", (row) => row.backend], ["Attempts", (row) => row.attempts], ["Id in the engine", (row) => row.engine_id], ["Slot", (row) => row.slot],
  ["Tokens in", (row) => row.tokens_in], ["Tokens out", (row) => row.tokens_out], ["Tokens/s", (row) => row.tokens_per_s], ["Age", (row) => brief(row.age_s)], ["Trace id", (row) => row.trace_id],
];

async function show(id, again = false) {
  try {
    const row = await ask("GET", `api/calls/${encodeURIComponent(id)}`);
    if (again && !$("call").open) return;
    view.open = { id, ended: row.phase === "ended" };
    put($("call-title"), `Call ${id}`);
    const facts = FACTS.map(([name, of]) => [name, shown(of(row))]).filter(([, text]) => text !== "–");
    $("call-facts").replaceChildren(...facts.map(([name, text]) => { const box = element("div"); box.append(element("dt", name), element("dd", text)); return box; }));
    $("call-steps").replaceChildren(...row.timeline.map((step) => { const line = element("li"); line.append(element("span", `+${brief(step.at_s)}`), element("span", step.what)); return line; }));
    $("call-kill").hidden = view.open.ended;
    $("call-kill").onclick = () => kill(row).catch((error) => say(`Kill ${id}: failed: ${error.message}`));
    if (!$("call").open) $("call").showModal();
  } catch (error) {
    if (!again) say(error.status === 404 ? `There is no call ${id}: neither live nor among the last ones that ended.` : `Call ${id} cannot be shown: ${error.message}`);
    view.open = null;
  }
}

// Tokens and money

async function money() {
  const { by } = Object.fromEntries(new FormData($("money-form")));
  try {
    const made = view.report = await ask("GET", `api/report?by=${by}`);
    put($("money-by"), by[0].toUpperCase() + by.slice(1));
    put($("cost"), `Cost (${made.currency})`);
    $("money-table").className = made.total.money || made.total.money_saved ? "" : "free";
    fill($("money"), [...made.rows, { [by]: "total", ...made.total }], (row) => row[by], (row) => [
      [(by === "cause" && OUTCOMES[row[by]]) || row[by] || "–"], [count(row.tokens_delivered), "number"], [count(row.tokens_wasted), "number"], [count(row.tokens_saved), "number"],
      [row.engine_s.toFixed(1), "number"], [row.money.toFixed(4), "number money"],
      [row.money_wasted.toFixed(4), "number money"], [row.money_saved.toFixed(4), "number money"],
    ]);
  } catch { /* the header shows the state of the connection */ }
}

// Sorting, filters, forms

function heads() {
  for (const [key, title, sort] of COLUMNS) {
    const head = element("th", sort ? undefined : title, { scope: "col", class: kindOf(key) });
    if (sort) {
      const button = element("button", title);
      button.addEventListener("click", () => {
        view.sort = view.sort === sort ? `-${sort}` : sort;
        view.offset = 0;
        mark();
        calls();
      });
      head.dataset.sort = sort;
      head.append(button);
    }
    $("calls-head").append(head);
  }
  $("calls-head").append(element("th", "Action", { scope: "col", class: "act" }));
  mark();
}

// The API's order puts what operators look for first; for numbers, that is the largest.
function mark() {
  for (const head of $("calls-head").querySelectorAll("[data-sort]")) {
    const { sort } = head.dataset;
    const usual = ASCENDING.has(sort) ? ["ascending", "descending"] : ["descending", "ascending"];
    head.setAttribute("aria-sort", view.sort === sort ? usual[0] : view.sort === `-${sort}` ? usual[1] : "none");
  }
}

// What is typed takes effect at once, so that the list is always that of the fields.
function filter() {
  view.filter = Object.fromEntries(new FormData($("filter")));
  view.offset = 0;
  calls();
}

let typing = 0;
$("filter").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(filter, 250); });
$("filter").addEventListener("submit", (event) => { event.preventDefault(); filter(); });
$("kill-chosen").addEventListener("click", () => killChosen().catch((error) => say(`The calls could not be killed: ${error.message}`)).finally(calls));
$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = new FormData($("find")).get("id").trim();
  if (id) show(id);
});
$("call").addEventListener("close", () => { view.open = null; });
$("back").addEventListener("click", () => { view.offset = Math.max(view.offset - PAGE, 0); calls(); });
$("forth").addEventListener("click", () => { view.offset += PAGE; calls(); });
$("money-form").addEventListener("change", () => { $("money").replaceChildren(); money(); });
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  $("token").value = "";
});
// On a phone, the fields would fill the screen.
const narrow = matchMedia("(max-width: 760px)");
const fold = () => { $("fields").open = !narrow.matches; };
narrow.addEventListener("change", fold);
fold();
heads();
graph.start();
watch();
setInterval(() => { if (document.body.className === "") money(); }, MONEY_MS);
