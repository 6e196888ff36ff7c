// What the parts of the dashboard share: asking the gateway, elements, tables, words for numbers. Text is only ever set as text,
// so that nothing a client chose (a model's name) can become markup.

export const $ = (id) => document.getElementById(id);

export function headers() {
  const token = sessionStorage.getItem("token");
  return token ? { "x-hangup": "1", authorization: `Bearer ${token}` } : { "x-hangup": "1" };
}

export async function ask(method, path) {
  const answer = await fetch(path, { method, headers: headers() });
  const value = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(value.error), { status: answer.status });
  return value;
}

export function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function shown(value) {
  if (value === null || value === undefined || value === "") return "–";
  return typeof value === "number" && !Number.isInteger(value) ? value.toFixed(1) : String(value);
}

// Beginning and end of a long id, which tell it from others; an item of a batch differs at its end.
export const short = (id) => (id.length <= 17 ? id : `${id.slice(0, 11)}…${id.slice(-5)}`);

// A duration, rounded.
export function lasting(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

// A short time, as exactly as it matters.
export function brief(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(2))} ms`;
  return seconds < 60 ? `${Number(seconds.toPrecision(2))} s` : lasting(seconds);
}

// A time, in 24 hours as in the log; with the date if it is not today's.
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
export function moment(at) {
  const when = new Date(at * 1000);
  return when.toDateString() === new Date().toDateString() ? CLOCK.format(when) : `${DAY.format(when)}, ${CLOCK.format(when)}`;
}
// The same for an axis with marks every `step` seconds: no more than tells them apart.
export function mark(at, step) {
  const when = new Date(at * 1000);
  const midnight = when.getHours() === 0 && when.getMinutes() === 0 && when.getSeconds() === 0;
  return step >= 86400 || (midnight && step >= 60) ? DAY.format(when) : CLOCK.format(when).slice(0, step < 60 ? 8 : 5);
}

// How calls ended.
export const OUTCOMES = {
  completed: "completed", client_gone: "the client hung up", deadline: "the client's deadline passed", cap: "reached a limit", engine_failed: "the engine failed",
  engine_refused: "the engine refused it", killed: "killed, or a job's item that made room", drained: "cut by a shutdown", shed: "refused: overload", refused: "refused", zombie: "zombies, after their end",
};

// How an alarm knows that an engine computes for nobody.
export const SIGNALS = {
  exact: "by its own count of tokens", statistical: "it is busy, and few tokens arrive", zombies: "it keeps working on calls that ended", alone: "it works although it has no call of ours",
};

export const count = new Intl.NumberFormat("en").format;
export const several = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
export const say = (text) => {
  put($("done"), text);
  clearTimeout(say.timer);
  say.timer = setTimeout(() => put($("done"), ""), 20000);
};

// Rows are kept by key and only changed cells are touched: the focus stays where it is, and little is redrawn. A cell is its text,
// its class and, where it can be clicked, what to do, and the whole text if it is shortened. On a phone, each cell shows its
// column's title.
export function fill(body, rows, key, cells, action) {
  const old = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const titles = [...(body.closest("table")?.tHead.rows[0].cells || [])].map((head) => head.textContent);
  rows.forEach((row, at) => {
    const name = String(key(row));
    let line = old.get(name);
    if (line === undefined) {
      line = element("tr", undefined, { "data-key": name });
      cells(row).forEach(([, , click]) => line.append(cell(click)));
      if (action) line.append(action(row));
    }
    old.delete(name);
    cells(row).forEach(([text, kind, , whole], column) => {
      const box = line.children[column];
      if (whole && box.title !== whole) box.title = whole;
      put(box.firstElementChild || box, text);
      const classes = `${kind || ""}${text === "–" ? " none" : ""}`.trim();
      if (box.className !== classes) box.className = classes;
      if (box.dataset.label !== titles[column]) box.dataset.label = titles[column] || "";
    });
    if (body.children[at] !== line) body.insertBefore(line, body.children[at] || null);
  });
  for (const gone of old.values()) gone.remove();
  const section = body.closest("section[data-hides]");
  if (section) section.hidden = rows.length === 0;
}

function cell(click) {
  const box = element("td");
  if (click) {
    const button = element("button", "", { type: "button", class: "link" });
    button.addEventListener("click", click);
    box.append(button);
  }
  return box;
}

// A cell with a button that acts on its row.
export function doing(text, label, act, after) {
  const box = element("td", undefined, { class: "act" });
  const button = element("button", text, { "aria-label": label });
  button.addEventListener("click", async () => {
    button.disabled = true;
    try { await act(button); } catch (error) { say(`${label}: failed: ${error.message}`); }
    button.disabled = false;
    after();
  });
  box.append(button);
  return box;
}
