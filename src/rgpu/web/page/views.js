// The views: each is made once for an address, {element, update(state)}, and updated with every picture.

import { Chart } from "./charts.js";
import { bytes, count, duration, h, keyed, plural, say, tint } from "./dom.js";

const GIB = 2 ** 30;
const percent = (part, whole) => (whole > 0 ? Math.min(100, (100 * part) / whole) : 0);
const where = (device) => `${device.server.name ?? device.server.address}:${device.index}`;
const deviceLink = (device) => `#/gpu/${encodeURIComponent(device.key)}`;
const sum = (items, value) => items.reduce((total, item) => total + (value(item) ?? 0), 0);

// Pool

export function poolView() {
  const tiles = { busy: tile("Utilization", "--load"), memory: tile("Memory", "--memory"), sessions: tile("Sessions"), queue: tile("Queue") };
  const banners = h("div.banners");
  const cards = h("div.cards");
  const none = h("p.empty", { hidden: true }, "This pool has no devices.");
  const table = sessionTable();
  const element = h("div", {}, h("section.tiles", {}, ...Object.values(tiles).map((one) => one.element)), banners,
    h("h2", {}, "Devices"), cards, none, h("h2", {}, "Sessions"), table.element);
  return {
    element,
    update(state) {
      keyed(banners, state.servers.filter((server) => server.reachable === false), (server) => server.address, banner);
      keyed(cards, state.devices, (device) => device.key, (device) => deviceCard(device, state));
      none.hidden = state.devices.length > 0;
      table.update(state.sessions);
      poolTiles(tiles, state);
    },
  };
}

function poolTiles(tiles, state) {
  const { devices, sessions } = state;
  const used = sum(devices, (device) => device.memory_used);
  const total = sum(devices, (device) => device.memory_total);
  const load = devices.length ? sum(devices, (device) => device.utilization) / devices.length : 0;
  const users = new Set(sessions.map((session) => session.user)).size;
  const busy = devices.filter((device) => device.sessions.length).length;
  const queued = queueOf(state);
  tiles.busy.update(`${Math.round(load)}`, "%", `${busy} of ${plural(devices.length, "device")} in use`, averages(state, "utilization"), state.times);
  const past = averages(state, "memory_used").map((value) => (value === null ? null : percent(value * devices.length, total)));
  tiles.memory.update(...bytes(used).split(" "), `of ${bytes(total)} · ${Math.round(percent(used, total))} %`, past, state.times);
  tiles.sessions.update(String(sessions.length), "", users ? plural(users, "user") : "nobody is here");
  tiles.queue.update(String(queued.length), "", queued.length ? `first: ${queued[0].user ?? "a client"}` : "nobody waits");
}

/** The mean of a series over the devices, at each time. */
function averages(state, name) {
  const all = [...state.history.values()].map((series) => series[name]);
  return state.times.map((_, i) => {
    const values = all.map((one) => one[i]).filter((value) => value !== null && value !== undefined);
    return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
  });
}

function tile(title, color) {
  const value = h("span.value");
  const unit = h("span.unit");
  const note = h("p.note");
  const chart = color ? new Chart({ height: 44, top: 100, axes: false, label: title }) : null;
  const element = h("div.tile", {}, h("h3", {}, title), h("p.big", {}, value, unit), note, chart?.canvas ?? null);
  return {
    element,
    update(text, unitText, words, values, times) {
      say(value, text);
      say(unit, unitText);
      say(note, words);
      chart?.update(times, [{ name: title, color, values }]);
    },
  };
}

function banner(server) {
  const words = h("span");
  const element = h("p.banner", { role: "alert" }, h("strong", {}, server.address), words);
  return { element, update: (one) => say(words, ` ${one.error ?? "does not answer"}${one.last_answer ? ` · last answer ${duration(Date.now() / 1000 - one.last_answer)} ago` : ""}`) };
}

function deviceCard(first, state) {
  const name = h("span.name");
  const place = h("span.place");
  const load = h("span.value");
  const chart = new Chart({ height: 56, top: 100, axes: false, label: "Utilization" });
  const memory = memoryBar();
  const chips = h("p.chips");
  const element = h("a.card", { href: deviceLink(first) },
    h("div.head", {}, h("span.ordinal", {}, String(first.ordinal)), h("div.names", {}, name, place), h("p.load", {}, load, h("span.unit", {}, "%"))),
    chart.canvas, memory.element, chips);
  return {
    element,
    update(device) {
      say(name, device.name);
      say(place, `${where(device)} · ${device.kind}`);
      say(load, Math.round(device.utilization));
      element.classList.toggle("idle", !device.sessions.length);
      memory.update(device);
      chart.update(state.times, [{ name: "load", color: "--load", values: state.history.get(device.key)?.utilization ?? [] }]);
      keyed(chips, chipsOf(device), (chip) => chip.name, chipPart);
    },
  };
}

function chipsOf(device) {
  const users = [...new Set(device.sessions.map((session) => session.user))];
  return [
    { name: "sessions", text: device.sessions.length ? plural(device.sessions.length, "session") : "free", tone: device.sessions.length ? "" : "free" },
    ...users.slice(0, 3).map((user) => ({ name: `user ${user}`, text: user, dot: tint(user) })),
    device.temperature != null && { name: "temperature", text: `${device.temperature} °C`, tone: device.temperature >= 85 ? "hot" : "" },
    device.power != null && { name: "power", text: `${Math.round(device.power)} W` },
    device.server.draining && { name: "draining", text: "draining", tone: "hot" },
    device.reading_age && { name: "stale", text: `read ${duration(device.reading_age)} ago`, tone: "hot" },
  ].filter(Boolean);
}

function chipPart(first) {
  const words = h("span");
  const dot = first.dot ? h("i.dot") : null;
  if (dot) dot.style.background = first.dot;
  const element = h("span.chip", {}, dot, words);
  return { element, update: (chip) => (say(words, chip.text), (element.className = `chip ${chip.tone ?? ""}`)) };
}

/** Used memory of a device, a part for each session in its user's colour. */
function memoryBar() {
  const bar = h("div.meter");
  const words = h("span");
  const share = h("span.share");
  const element = h("div.memory", {}, bar, h("p.legend", {}, words, share));
  return {
    element,
    update(device) {
      const parts = device.sessions.map((session) => ({ key: session.id, size: session.memory_used, color: tint(session.user), title: `${session.user}: ${bytes(session.memory_used)}` }));
      const rest = Math.max(0, device.memory_used - sum(parts, (part) => part.size));
      if (rest > device.memory_total / 500) parts.push({ key: "other", size: rest, color: "var(--faint)", title: `other: ${bytes(rest)}` });
      keyed(bar, parts, (part) => part.key, () => {
        const piece = h("i");
        return { element: piece, update: (part) => { piece.style.width = `${percent(part.size, device.memory_total)}%`; piece.style.background = part.color; piece.title = part.title; } };
      });
      say(words, `${bytes(device.memory_used)} of ${bytes(device.memory_total)}`);
      say(share, `${Math.round(percent(device.memory_used, device.memory_total))} %`);
    },
  };
}

// Devices

const LOAD = (value) => [h("span.cellbar", {}, fill(value, "var(--load)")), `${Math.round(value)} %`];
const DEVICE_COLUMNS = [
  { title: "GPU", value: (d) => d.ordinal, number: true },
  { title: "Name", value: (d) => d.name, cell: (d) => h("a", { href: deviceLink(d) }, d.name), wide: true },
  { title: "Server", value: where },
  { title: "Load", value: (d) => d.utilization, cell: (d) => LOAD(d.utilization), bar: true },
  { title: "Memory", value: (d) => d.memory_used, cell: (d) => [h("span.cellbar", {}, fill(percent(d.memory_used, d.memory_total), "var(--memory)")), `${bytes(d.memory_used)} / ${bytes(d.memory_total)}`], bar: true },
  { title: "Temp", value: (d) => d.temperature ?? null, text: (v) => `${v} °C`, number: true },
  { title: "Power", value: (d) => d.power ?? null, text: (v) => `${Math.round(v)} W`, number: true },
  { title: "SM clock", value: (d) => d.clocks?.sm ?? null, text: (v) => `${v} MHz`, number: true },
  { title: "Sessions", value: (d) => d.sessions.length, number: true },
];

export function devicesView() {
  const all = table(DEVICE_COLUMNS, (device) => device.key, "This pool has no devices.");
  return { element: h("div", {}, h("h1", {}, "Devices"), all.element), update: (state) => all.update(state.devices) };
}

export function deviceView(key) {
  const title = h("h1");
  const place = h("p.lead");
  const charts = h("div.charts");
  const facts = h("dl.facts");
  const sessions = sessionTable();
  const leases = table(LEASE_COLUMNS, (one) => one.id, "Nobody holds a lease on it.");
  const element = h("div", {}, h("p.crumbs", {}, h("a", { href: "#/devices" }, "Devices"), " /"), title, place, charts,
    h("h2", {}, "Sessions"), sessions.element, h("h2", {}, "Leases"), leases.element, h("h2", {}, "About"), facts);
  return {
    element,
    update(state) {
      const device = state.devices.find((one) => one.key === key);
      if (!device) {
        say(title, "This device is not there");
        say(place, `${key}: its server does not answer, or has no such device any more.`);
        return;
      }
      say(title, device.name);
      say(place, `GPU ${device.ordinal} · ${where(device)} · ${device.uuid ?? "no UUID"}`);
      keyed(charts, chartsOf(device), (one) => one.title, (one) => panel(one));
      charts.known.forEach((part, name) => part.draw(state, device, chartsOf(device).find((one) => one.title === name)));
      sessions.update(state.sessions.filter((session) => session.device.key === key));
      leases.update(device.leases ?? []);
      keyed(facts, factsOf(device), ([name]) => name, fact);
    },
  };
}

function chartsOf(device) {
  const memory = Math.max(1, Math.round(device.memory_total / GIB));
  return [
    { title: "Utilization", unit: " %", top: 100, series: [["load", "--load", "utilization", 1]] },
    { title: "Memory", unit: " GiB", top: memory, series: [["used", "--memory", "memory_used", GIB]] },
    device.power != null && { title: "Power", unit: " W", top: device.power_limit ?? undefined, series: [["power", "--warm", "power", 1]] },
    device.temperature != null && { title: "Temperature", unit: " °C", top: 100, series: [["temperature", "--hot", "temperature", 1]] },
  ].filter(Boolean);
}

function panel(one) {
  const chart = new Chart({ height: 170, top: one.top, unit: one.unit, label: one.title });
  const now = h("span.now");
  return {
    element: h("section.panel", {}, h("h3", {}, one.title, now), chart.canvas),
    update() {},
    draw(state, device, spec) {
      if (!spec) return;
      const history = state.history.get(device.key) ?? {};
      const series = spec.series.map(([name, color, key, unit]) => ({ name, color, values: (history[key] ?? []).map((v) => (v === null ? null : v / unit)) }));
      const last = series[0].values.at(-1);
      say(now, last == null ? "–" : `${last >= 100 ? Math.round(last) : +last.toFixed(1)}${spec.unit}`);
      chart.update(state.times, series);
    },
  };
}

function factsOf(device) {
  const pcie = device.pcie_gen != null ? `gen ${device.pcie_gen} × ${device.pcie_width}` : null;
  return [
    ["Server", `${device.server.name} (rgpu ${device.server.version})`], ["Host", device.server.host],
    ["Kind", device.kind], ["Memory leased", device.memory_leased != null ? bytes(device.memory_leased) : null], ["Driver", device.driver], ["CUDA", device.cuda], ["Architecture", device.architecture],
    ["Compute capability", device.compute_capability?.join(".")], ["Cores", device.cores], ["PCI bus", device.pci_bus_id], ["PCIe", pcie],
    ["Performance state", device.performance_state], ["Compute mode", device.compute_mode], ["MIG", device.mig_mode], ["ECC", device.ecc_mode],
    ["SM clock", device.clocks?.sm != null ? `${device.clocks.sm} MHz` : null], ["Memory clock", device.clocks?.memory != null ? `${device.clocks.memory} MHz` : null],
    ["Power limit", device.power_limit != null ? `${Math.round(device.power_limit)} W` : null], ["Server up", duration(device.server.uptime)],
  ].filter(([, value]) => value !== null && value !== undefined);
}

function fact([name]) {
  const value = h("dd");
  return { element: h("div", {}, h("dt", {}, name), value), update: ([, now]) => say(value, now) };
}

// Sessions

const limit = (s) => s.memory_limit || s.device.memory_total;
const SESSION_COLUMNS = [
  { title: "User", value: (s) => s.user, cell: (s) => who(s.user) },
  { title: "Program", value: (s) => s.program, cell: (s) => h("code", { title: s.program }, s.program.split("/").pop()), wide: true },
  { title: "Client", value: (s) => `${s.host}:${s.pid}`, cell: (s) => h("span", { title: `process ${s.pid} on ${s.host}` }, `${s.host} · ${s.pid}`) },
  { title: "GPU", value: (s) => s.device.ordinal, cell: (s) => h("a", { href: deviceLink(s.device) }, `${s.device.ordinal} · ${where(s.device)}`) },
  { title: "Memory", value: (s) => s.memory_used, cell: (s) => [h("span.cellbar", {}, fill(percent(s.memory_used, limit(s)), "var(--memory)")), s.memory_limit ? `${bytes(s.memory_used)} / ${bytes(s.memory_limit)}` : bytes(s.memory_used)], bar: true },
  { title: "Busy", value: (s) => s.utilization ?? 0, cell: (s) => LOAD(s.utilization ?? 0), bar: true },
  { title: "Commands/s", value: (s) => s.rate ?? null, text: count, number: true },
  { title: "Link", value: (s) => s.link ?? null, text: String, optional: true },
  { title: "Share", value: (s) => s.compute || null, text: (v) => `${Math.round(v * 100)} %`, number: true, optional: true },
  { title: "Spilled", value: (s) => s.memory_spilled || null, text: bytes, number: true, optional: true },
  { title: "Age", value: (s) => s.age, text: duration, number: true },
];

const sessionTable = () => table(SESSION_COLUMNS, (session) => session.key, "No session is running.");

export function sessionsView() {
  const all = sessionTable();
  let last = null;
  const search = h("input", { type: "search", placeholder: "User, program, client, server …", "aria-label": "Filter sessions", oninput: () => show() });
  const show = () => {
    const wanted = search.value.toLowerCase();
    const text = (s) => `${s.user} ${s.program} ${s.host} ${s.pid} ${where(s.device)} ${s.id}`.toLowerCase();
    if (last) all.update(last.sessions.filter((session) => text(session).includes(wanted)));
  };
  return {
    element: h("div", {}, h("div.titlebar", {}, h("h1", {}, "Sessions"), search), all.element),
    update(state) { last = state; show(); },
  };
}

// Leases

const LEASE_COLUMNS = [
  { title: "User", value: (l) => l.user, cell: (l) => who(l.user) },
  { title: "Client", value: (l) => `${l.host} · ${l.pid}` },
  { title: "Program", value: (l) => l.program ?? null, text: (v) => v.split("/").pop() },
  { title: "Memory", value: (l) => l.memory || null, text: bytes, number: true },
  { title: "Share", value: (l) => l.compute || null, text: (v) => `${Math.round(v * 100)} %`, number: true },
  { title: "Sessions", value: (l) => l.sessions ?? null, text: String, number: true },
  { title: "Idle", value: (l) => l.idle ?? null, text: duration, number: true },
  { title: "Ends in", value: (l) => l.seconds_left ?? null, text: duration, number: true },
];

function who(user) {
  const dot = h("i.dot");
  dot.style.background = tint(user);
  return [dot, user];
}

// Queue

// Whoever waits in the registry waits for several servers: one row.
const queueOf = (state) => {
  const rows = new Map();
  for (const server of state.servers) {
    const waiting = server.queue ?? Array.from({ length: server.waiting ?? 0 }, (_, i) => ({ position: i + 1 }));
    waiting.forEach((one, i) => {
      const key = one.ticket ?? `${server.name}/${one.id ?? one.pid ?? ""}/${i}`;
      const place = rows.has(key) ? "registry" : server.name;
      rows.set(key, { ...one, place, key, position: one.position ?? i + 1 });
    });
  }
  return [...rows.values()];
};

function wanted(q) {
  const parts = [q.count && plural(q.count, "device"), q.memory && bytes(q.memory), q.compute && `${Math.round(100 * q.compute)} %`];
  return parts.filter(Boolean).join(", ") || null;
}

const QUEUE_COLUMNS = [
  { title: "Position", value: (q) => q.position, number: true },
  { title: "User", value: (q) => q.user ?? null, text: String },
  { title: "Client", value: (q) => (q.host ? `${q.host} · ${q.pid ?? ""}` : null), text: String },
  { title: "Server", value: (q) => q.place },
  { title: "Program", value: (q) => q.program ?? null, text: (v) => v.split("/").pop() },
  { title: "Wants", value: wanted, text: String },
  { title: "Waiting", value: (q) => q.waited ?? null, text: duration, number: true },
];

export function queueView() {
  const all = table(QUEUE_COLUMNS, (one) => one.key, "Nobody waits: every client that asked has a device.");
  return { element: h("div", {}, h("h1", {}, "Queue"), all.element), update: (state) => all.update(queueOf(state)) };
}

// Tables: sorted by a click on a column, cards on a narrow screen

function fill(value, color) {
  const bar = h("i");
  bar.style.width = `${Math.min(100, value)}%`;
  bar.style.background = color;
  return bar;
}

function table(columns, key, nothing) {
  let order = { column: 0, up: true };
  let rows = [];
  const heads = columns.map((column, i) => h("th", { scope: "col", class: column.number ? "number" : undefined },
    h("button", { type: "button", onclick: () => { order = { column: i, up: order.column === i ? !order.up : true }; draw(); } }, column.title)));
  const body = h("tbody");
  const whole = h("div.table", {}, h("table", {}, h("thead", {}, h("tr", {}, ...heads)), body));
  const empty = h("p.empty", {}, nothing);
  const element = h("div", {}, whole, empty);
  function draw() {
    const { value } = columns[order.column];
    const sorted = [...rows].sort((a, b) => compare(value(a), value(b)) * (order.up ? 1 : -1));
    heads.forEach((head, i) => i === order.column ? head.setAttribute("aria-sort", order.up ? "ascending" : "descending") : head.removeAttribute("aria-sort"));
    columns.forEach((column, i) => whole.classList.toggle(`without-${i}`, Boolean(column.optional) && rows.every((row) => column.value(row) === null)));
    keyed(body, sorted, key, () => tableRow(columns));
    whole.hidden = !rows.length;
    empty.hidden = rows.length > 0;
  }
  return { element, update: (items) => { rows = items; draw(); } };
}

function tableRow(columns) {
  const cells = columns.map((column) => h("td", { "data-label": column.title, class: [column.number && "number", column.wide && "wide", column.bar && "bars"].filter(Boolean).join(" ") || undefined }));
  return {
    element: h("tr", {}, ...cells),
    update(item) {
      columns.forEach((column, i) => {
        const value = column.value(item);
        if (column.cell) cells[i].replaceChildren(...[column.cell(item)].flat());
        else say(cells[i], value === null ? "–" : (column.text ?? String)(value));
      });
    },
  };
}

function compare(a, b) {
  if (a === null || b === null) return a === b ? 0 : a === null ? -1 : 1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
}
