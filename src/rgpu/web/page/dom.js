// Making elements and text. Everything that a server says becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: h("p.note", {title: "x"}, "text", child). */
export function h(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A small line icon from its path. */
export function icon(path, size = 16) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ viewBox: "0 0 24 24", width: size, height: size, "aria-hidden": "true" }))
    svg.setAttribute(name, value);
  svg.setAttribute("class", "icon");
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

/** Set text only where it changed, so that a selection survives. */
export function say(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}

/** Children of `parent`, one for each item: made once by `make(item)`, then `{element, update}` is kept by key. */
export function keyed(parent, items, key, make) {
  const known = parent.known ?? (parent.known = new Map());
  const wanted = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    wanted.add(name);
    let part = known.get(name);
    if (!part) known.set(name, (part = make(item)));
    part.update(item);
    if (part.element === place) place = place.nextElementSibling;
    else parent.insertBefore(part.element, place);
  }
  for (const [name, part] of known)
    if (!wanted.has(name)) {
      part.element.remove();
      known.delete(name);
    }
}

// Words for numbers

export function bytes(n, digits = 1) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) (n /= 1024), unit++;
  return `${unit < 2 ? Math.round(n) : n.toFixed(n >= 100 ? 0 : digits)} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} days`;
}

export function count(n) {
  if (n === null || n === undefined) return "–";
  if (n < 1e4) return String(Math.round(n));
  if (n < 1e6) return `${(n / 1e3).toFixed(1)} k`;
  return `${(n / 1e6).toFixed(1)} M`;
}

export const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

/** One of eight colours, the same for the same user everywhere. */
export function tint(name) {
  let hash = 7;
  for (const character of name) hash = (hash * 31 + character.codePointAt(0)) >>> 0;
  return `var(--tint-${hash % 8})`;
}
