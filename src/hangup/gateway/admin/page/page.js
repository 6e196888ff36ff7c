"use strict";
// The dashboard: the overview arrives as server-sent events, the page of live calls is polled beside it. Text is only ever set
// as text, so that nothing a client chose (a model's name) can become markup.

const PAGE = 50;
const RETRY_MS = 1000;
const MONEY_MS = 10000;
const COLUMNS = [
  ["id", "Call", ""], ["tenant", "Tenant", "tenant"], ["client", "Client", "client"], ["model", "Model", "model"],
  ["backend", "Backend", "backend"],
  ["slot", "Slot", ""], ["phase", "Phase", "phase"], ["age_s", "Age (s)", "age"], ["tokens_in", "Tokens in", ""],
  ["tokens_out", "Tokens out", "tokens"], ["tokens_per_s", "Tokens/s", "rate"], ["idle_s", "Idle (s)", "idle"],
  ["deadline_left_s", "Deadline (s)", "deadline"], ["waits_for", "Waiting for", ""],
];
const NUMBERS = new Set(["slot", "age_s", "tokens_in", "tokens_out", "tokens_per_s", "idle_s", "deadline_left_s"]);

const $ = (id) => document.getElementById(id);
const view = { sort: "age", offset: 0, total: 0, filter: {}, asking: false };

function headers() {
  const token = sessionStorage.getItem("token");
  return token ? { "x-hangup": "1", authorization: `Bearer ${token}` } : { "x-hangup": "1" };
}

async function ask(method, path) {
  const answer = await fetch(path, { method, headers: headers() });
  if (answer.status === 401) $("login").hidden = false;
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error);
  return value;
}

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function shown(value) {
  if (value === null || value === undefined || value === "") return "–";
  return typeof value === "number" && !Number.isInteger(value) ? value.toFixed(1) : String(value);
}

// A duration, rounded.
function lasting(seconds) {
  if (seconds === null) return "–";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

const count = new Intl.NumberFormat("en").format;
const several = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

// Rows are kept by key and only changed cells are touched: the focus stays where it is, and little is redrawn.
function fill(body, rows, key, cells, action) {
  const old = new Map([...body.children].map((row) => [row.dataset.key, row]));
  rows.forEach((row, at) => {
    const name = String(key(row));
    let line = old.get(name);
    if (line === undefined) {
      line = element("tr", undefined, { "data-key": name });
      cells(row).forEach(() => line.append(element("td")));
      if (action) line.append(action(row));
    }
    old.delete(name);
    cells(row).forEach(([text, kind], column) => {
      put(line.children[column], text);
      if (line.children[column].className !== (kind || "")) line.children[column].className = kind || "";
    });
    if (body.children[at] !== line) body.insertBefore(line, body.children[at] || null);
  });
  for (const gone of old.values()) gone.remove();
}

// Glances

async function watch() {
  for (;;) {
    try {
      const answer = await fetch("api/events", { headers: headers() });
      if (answer.status === 401) {
        $("login").hidden = false;
        const given = sessionStorage.getItem("token") !== null;
        throw new Error(given ? "the gateway refused this admin token" : "the gateway requires its admin token");
      }
      if (!answer.ok) throw new Error(`the gateway returned status ${answer.status}`);
      $("login").hidden = true;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const events = (text + value).split("\n\n");
        text = events.pop();
        if (events.length) glance(JSON.parse(events.at(-1).slice(6)));
      }
      throw new Error("the gateway closed the connection");
    } catch (error) {
      put($("state"), `disconnected: ${error.message}; retrying`);
      $("state").className = "lost";
    }
    await new Promise((again) => setTimeout(again, RETRY_MS));
  }
}

function glance(now) {
  put($("state"), `version ${now.version}, ${now.not_ready ? `not ready: ${now.not_ready}` : "ready"}`);
  $("state").className = now.not_ready ? "lost" : "";
  const last = now.history.at(-1) || [0, null, null, 0];
  const nobody = last[2] === null ? "–" : count(Math.round(Math.max(last[2] - last[3], 0)));
  tiles({
    "Live calls": count(now.live), "Waiting": count(now.waiting), "Connections": count(now.connections),
    "Tokens/s received": count(Math.round(last[3])), "Tokens/s nobody receives": nobody,
    "Tokens delivered": count((now.tokens.delivered || 0) + now.tokens_streaming), "Tokens wasted": count(now.tokens.wasted || 0),
  });
  alarms(now.alarms);
  chart(now.history);
  backends(now.backends);
  const ends = Object.entries(now.outcomes).filter(([name]) => name !== "shed" && name !== "refused");
  const rows = [...ends, ...Object.entries(now.refusals).map(([name, calls]) => [`refused: ${name}`, calls])];
  fill($("refusals"), rows, (row) => row[0], (row) => [[row[0]], [count(row[1]), "number"]]);
  zombies(now.zombies);
  jobs(now.jobs);
  left(now.left);
  calls();
}

function tiles(values) {
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

function alarms(rows) {
  const words = rows.map((row) => {
    const who = row.suspects.tenants.length ? ` Suspected tenants: ${row.suspects.tenants.join(", ")}.` : "";
    return `Backend ${row.backend} computes tokens that nobody receives (signal: ${row.signal}).${who} Check its zombies; drain it to stop new calls.`;
  });
  fill($("alarms"), words, (text) => text, () => [], (text) => element("p", text));
}

function chart(history) {
  const rows = history.slice(-180);
  const draw = (kind, points) => element2("path", { class: kind, d: points });
  const svg = $("chart");
  if (rows.length < 2) { put($("chart-words"), "no data yet"); return; }
  const top = Math.max(1, ...rows.map((row) => Math.max(row[2] || 0, row[3]))) * 1.1;
  const x = (at) => (at / (rows.length - 1)) * 1000;
  const y = (value) => 215 - (value / top) * 205;
  const line = (column) => rows.map((row, at) => `${at ? "L" : "M"}${x(at).toFixed(1)} ${y(row[column] ?? row[3]).toFixed(1)}`).join("");
  const busy = rows.map((row, at) => `L${x(at).toFixed(1)} ${(215 - (row[1] || 0) * 205).toFixed(1)}`).join("");
  const backwards = rows.map((_, at) => rows.length - 1 - at).map((at) => `L${x(at).toFixed(1)} ${y(rows[at][3]).toFixed(1)}`).join("");
  svg.replaceChildren(
    draw("busy", `M0 215${busy}L1000 215Z`), draw("gap", `${line(2)}${backwards}Z`), draw("computed", line(2)), draw("seen", line(3)),
  );
  const last = rows.at(-1);
  const seconds = Math.round(last[0] - rows[0][0]);
  const busyWords = last[1] === null ? "busy: unknown" : `busy ${Math.round(last[1] * 100)} %`;
  const computed = last[2] === null ? "an unknown number" : count(Math.round(last[2]));
  put($("chart-words"), `Last ${seconds} s. Now: ${busyWords}, ${computed} tokens/s computed, ${count(Math.round(last[3]))} received.`);
}

function element2(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const LIMITED_BY = {
  slots: "slots", late_first_tokens: "first tokens are late", engine_reports_waiting: "calls wait in the engine",
  engine_refused: "the engine refused more calls", slow_steps: "tokens are slow",
};

function limitText(row) {
  if (row.limit === null) return "none";
  const why = row.paused_s !== null ? `the engine refuses calls for ${row.paused_s} s` : LIMITED_BY[row.limited_by];
  return why ? `${count(row.limit)} (${why})` : count(row.limit);
}

function backends(rows) {
  const cells = (row) => [
    [row.name], [row.engine], [row.state, row.state === "up" ? "good" : "warm"], [count(row.in_flight), "number"],
    [limitText(row), "number"], [row.busy === null ? "–" : `${Math.round(row.busy * 100)} %`, "number"],
    [row.tokens_computed === null ? "–" : count(row.tokens_computed), "number"], [row.alarm || "–", row.alarm ? "bad" : ""],
    [row.ladder || "–", row.ladder ? `ladder ${row.ladder}` : ""], [ladderWords(row), "why"],
  ];
  fill($("backends"), rows, (row) => row.name, cells, (row) => doing("Drain", `Drain ${row.name}`, async (button) => {
    const on = button.textContent === "Drain";
    await ask(on ? "PUT" : "DELETE", `api/backends/${encodeURIComponent(row.name)}/drain`);
    say(`Backend ${row.name} is ${on ? "drained and gets no new calls" : "no longer drained"}.`);
  }));
  for (const row of rows) {
    const button = $("backends").querySelector(`[data-key="${CSS.escape(row.name)}"] button`);
    const word = row.drained ? "Undrain" : "Drain";
    put(button, word);
    button.setAttribute("aria-label", `${word} ${row.name}`);
  }
}

function ladderWords(row) {
  return row.ladder_reason ? `${row.ladder_reason} (for ${lasting(row.ladder_s)})` : "–";
}

// Whether an engine has stopped the work of an ended call.
const RELEASES = {
  verified: ["stopped, verified", "good"], restarted: ["stopped by a restart", "good"], unverified: ["disconnected, stop not verified", "warm"],
  pending: ["waiting for confirmation", "soft"], zombie: ["still running", "bad"],
};

function zombies(rows) {
  const end = (row) => (row.lived_s === null ? "" : ` after ${lasting(row.lived_s)}`);
  fill($("zombies"), rows, (row) => row.id, (row) => [
    [row.id], [shown(row.tenant)], [shown(row.cause)], [row.backend], [shown(row.slot), "number"], [`${lasting(row.ended_s_ago)} ago`, "number"],
    [row.tokens_since === null ? "–" : count(row.tokens_since), "number"], [`${row.aborts} ×`, "number"],
    [`${RELEASES[row.release][0]}${end(row)}`, RELEASES[row.release][1]],
  ]);
}

function left(rows) {
  fill($("left"), rows, (row) => row.id, (row) => [
    [row.id], [shown(row.tenant)], [row.backend], [row.cause], [`${lasting(row.ended_s_ago)} ago`, "number"], [count(row.tokens_out), "number"],
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
      [row.id], [row.tenant], [row.status, row.status === "running" ? "good" : "warm"], [`${share} %`, `share p${Math.round(share / 10) * 10}`],
      [count(row.items.total), "number"], [count(row.items.running), "number"], [count(row.items.errored), "number"],
      [lasting(row.age_s), "number"], [left(row), "number"], [row.what],
    ];
  };
  fill($("jobs"), known.rows, (row) => row.id, cells, (row) => doing("Cancel", `Cancel ${row.id}`, async () => {
    if (confirm(`Cancel job ${row.id} of ${row.tenant} and stop its work in the engines?`)) {
      const job = await ask("DELETE", `api/jobs/${encodeURIComponent(row.id)}`);
      say(`Job ${job.id} is ${job.status}${job.items.claimed ? `; waiting for the engines to stop ${several(job.items.claimed, "item")}` : ""}.`);
    }
  }));
}

// Live calls

function query(extra) {
  const given = Object.entries({ ...view.filter, ...extra }).filter(([, value]) => value !== "" && value !== undefined);
  return new URLSearchParams(given).toString();
}

async function calls() {
  if (view.asking) return;
  view.asking = true;
  try {
    const page = await ask("GET", `api/calls?${query({ sort: view.sort, offset: view.offset, limit: PAGE })}`);
    view.total = page.total;
    put($("calls-count"), `(${count(page.total)}${page.total === page.live ? "" : ` of ${count(page.live)}`})`);
    put($("page"), page.total ? `${page.offset + 1}–${Math.min(page.offset + PAGE, page.total)} of ${count(page.total)}` : "none");
    $("back").disabled = view.offset === 0;
    $("forth").disabled = view.offset + PAGE >= page.total;
    const cells = (row) => COLUMNS.map(([key]) => [shown(row[key]), NUMBERS.has(key) ? "number" : ""]);
    fill($("calls-body"), page.calls, (row) => row.id, cells, (row) => doing("Kill", `Kill ${row.id}`, async () => {
      if (confirm(`Kill call ${row.id} of ${row.tenant} and stop its work in the engine?`)) {
        say(`Killing call ${row.id}; waiting for the engine to confirm …`);
        killed((await ask("DELETE", `api/calls/${encodeURIComponent(row.id)}`)).killed);
      }
    }));
  } catch (error) {
    say(`The live calls could not be listed: ${error.message}`);
  } finally {
    view.asking = false;
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

function doing(text, label, act) {
  const cell = element("td");
  const button = element("button", text, { "aria-label": label });
  button.addEventListener("click", async () => {
    button.disabled = true;
    try { await act(button); } catch (error) { say(`${label}: failed: ${error.message}`); }
    button.disabled = false;
    calls();
  });
  cell.append(button);
  return cell;
}

function say(text) { put($("done"), text); }

async function money() {
  try {
    const made = await ask("GET", "api/report?by=cause");
    put($("cost"), `Cost (${made.currency})`);
    fill($("money"), [...made.rows, { cause: "total", ...made.total }], (row) => row.cause, (row) => [
      [row.cause], [count(row.tokens_delivered), "number"], [count(row.tokens_wasted), "number"], [count(row.tokens_saved), "number"],
      [row.engine_s.toFixed(1), "number"], [row.money.toFixed(4), "number"],
      [row.money_wasted.toFixed(4), "number"], [row.money_saved.toFixed(4), "number"],
    ]);
  } catch { /* the connection's state is shown by the glances */ }
  setTimeout(money, MONEY_MS);
}

function heads() {
  for (const [key, title, sort] of COLUMNS) {
    const head = element("th", sort ? undefined : title, { scope: "col", class: NUMBERS.has(key) ? "number" : "" });
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
  $("calls-head").append(element("th", "Action", { scope: "col" }));
  mark();
}

function mark() {
  for (const head of $("calls-head").querySelectorAll("[data-sort]")) {
    const direction = view.sort === head.dataset.sort ? "ascending" : view.sort === `-${head.dataset.sort}` ? "descending" : "none";
    head.setAttribute("aria-sort", direction);
  }
}

$("filter").addEventListener("submit", (event) => {
  event.preventDefault();
  view.filter = Object.fromEntries(new FormData($("filter")));
  view.offset = 0;
  calls();
});
$("kill-chosen").addEventListener("click", async () => {
  view.filter = Object.fromEntries(new FormData($("filter")));
  try {
    const chosen = (await ask("DELETE", `api/calls?${query({ dry_run: 1 })}`)).would_kill.length;
    if (!chosen) say("No live call matches the filter.");
    else if (confirm(`Kill ${several(chosen, "call")} and stop the work in the engines?`)) {
      say(`Killing ${several(chosen, "call")}; waiting for the engines to confirm …`);
      killed((await ask("DELETE", `api/calls?${query({})}`)).killed);
    }
  } catch (error) {
    say(`The calls could not be killed: ${error.message}`);
  }
  calls();
});
$("back").addEventListener("click", () => { view.offset = Math.max(view.offset - PAGE, 0); calls(); });
$("forth").addEventListener("click", () => { view.offset += PAGE; calls(); });
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  $("token").value = "";
});
heads();
watch();
money();
