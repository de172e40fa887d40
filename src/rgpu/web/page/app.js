// The page: the state of the pool from the server's events, the view that the address names, the theme.

import { icon, h, plural, say } from "./dom.js";
import { deviceView, devicesView, poolView, queueView, sessionsView } from "./views.js";

const KEPT = 600; // points of history
const state = { servers: [], devices: [], sessions: [], times: [], history: new Map(), rates: new Map(), now: 0 };
const views = { "": poolView, devices: devicesView, gpu: deviceView, sessions: sessionsView, queue: queueView };
const SERIES = ["utilization", "memory_used", "power", "temperature"];

const main = document.getElementById("view");
let current = null;

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const make = views[name] ?? poolView;
  current = make(rest.join("/"));
  main.replaceChildren(current.element);
  const shown = { "": "pool", gpu: "devices" }[name] ?? name;
  for (const link of document.querySelectorAll("nav a"))
    link.toggleAttribute("aria-current", link.dataset.view === shown);
  window.scrollTo(0, 0);
  if (state.now) current.update(state);
}

// What the server tells

function historyCame(event) {
  const told = JSON.parse(event.data);
  state.times = told.times;
  state.history = new Map(Object.entries(told.devices));
}

function pictureCame(event) {
  const told = JSON.parse(event.data);
  const before = state.now;
  state.servers = told.servers;
  state.now = told.time;
  state.heard = performance.now();
  state.devices = [];
  state.sessions = [];
  for (const server of told.servers)
    for (const device of server.devices) {
      const key = `${server.address ?? server.name}/${device.index}`;
      const entry = { ...device, key, server, ordinal: device.pool_index ?? state.devices.length };
      state.devices.push(entry);
      for (const session of device.sessions) state.sessions.push({ ...session, key: `${key}/${session.id}`, device: entry });
    }
  if (told.time !== state.times.at(-1)) remember(told.time);
  rates(told.time - before);
  show();
}

function remember(time) {
  if (state.times.length && Math.abs(time - state.times.at(-1)) < 0.5) return; // the history had it already
  state.times.push(time);
  const present = new Map(state.devices.map((device) => [device.key, device]));
  for (const key of present.keys())
    if (!state.history.has(key))
      state.history.set(key, Object.fromEntries(SERIES.map((name) => [name, Array(state.times.length - 1).fill(null)])));
  for (const [key, series] of state.history)
    for (const name of SERIES) series[name].push(present.get(key)?.[name] ?? null);
  if (state.times.length > KEPT) {
    state.times.shift();
    for (const series of state.history.values()) for (const name of SERIES) series[name].shift();
  }
}

/** Commands a second of each session, from two pictures. */
function rates(elapsed) {
  const known = new Map();
  for (const session of state.sessions) {
    const before = state.rates.get(session.key);
    const rate = before && elapsed > 0 ? Math.max(0, session.commands - before.commands) / elapsed : null;
    known.set(session.key, { commands: session.commands, rate });
    session.rate = rate;
  }
  state.rates = known;
}

function show() {
  const down = state.servers.filter((server) => server.reachable === false).length;
  const up = state.servers.length - down;
  status(down ? "warn" : "good", down ? `${down} of ${plural(state.servers.length, "server")} down` : `${plural(up, "server")} · live`);
  document.title = `rgpu · ${plural(state.devices.length, "device")}, ${plural(state.sessions.length, "session")}`;
  current.update(state);
}

function status(kind, words) {
  const element = document.getElementById("status");
  element.dataset.kind = kind;
  say(element.querySelector(".words"), words);
}

function listen() {
  const source = new EventSource("v1/events");
  source.addEventListener("history", historyCame);
  source.addEventListener("picture", pictureCame);
  source.addEventListener("error", () => status("bad", "connection lost, trying again"));
  setInterval(() => {
    if (state.heard && performance.now() - state.heard > 5000 && source.readyState === EventSource.OPEN)
      status("warn", `last news ${Math.round((performance.now() - state.heard) / 1000)} s ago`);
  }, 1000);
}

// Light, dark, or as the system has it

const THEMES = {
  auto: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4.9 4.9l1.4 1.4M17.7 17.7l1.4 1.4M2 12h2M20 12h2M4.9 19.1l1.4-1.4M17.7 6.3l1.4-1.4",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
};

function theme(name) {
  const button = document.getElementById("theme");
  document.documentElement.dataset.theme = name;
  localStorage.setItem("rgpu-theme", name);
  button.replaceChildren(icon(THEMES[name], 18));
  button.title = `Theme: ${name}`;
  button.setAttribute("aria-label", `Theme: ${name}`);
  if (state.now) current?.update(state);
}

document.getElementById("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  theme(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.now && current.update(state));
window.addEventListener("hashchange", route);
theme(localStorage.getItem("rgpu-theme") in THEMES ? localStorage.getItem("rgpu-theme") : "auto");
main.append(h("p.empty", {}, "Waiting for the first picture …"));
route();
listen();
