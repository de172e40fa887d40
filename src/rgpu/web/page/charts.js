// Live charts on a canvas: a line over time with its area, a grid, and the values under the pointer.
// Colours come from the style sheet, so that they follow the theme.

const WINDOW = 300; // seconds shown, where there are as many
const SHORTEST = 60;
const observed = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.chart?.draw()));

export class Chart {
  /** `series`: [{name, color (a CSS variable), values}]; `top`: the fixed upper end, or nothing to fit. */
  constructor({ height = 120, top, unit = "", axes = true, label = "" }) {
    Object.assign(this, { top, unit, axes, series: [], times: [] });
    this.canvas = document.createElement("canvas");
    this.canvas.chart = this;
    this.canvas.style.height = `${height}px`;
    this.canvas.setAttribute("role", "img");
    this.label = label;
    if (axes) {
      this.canvas.addEventListener("pointermove", (event) => this.#point(event.offsetX));
      this.canvas.addEventListener("pointerleave", () => this.#point(null));
    }
    observed.observe(this.canvas);
  }

  update(times, series) {
    this.times = times;
    this.series = series;
    const last = series.map((one) => `${one.name} ${this.#words(one.values.at(-1))}`).join(", ");
    this.canvas.setAttribute("aria-label", `${this.label}: ${last}`);
    this.draw();
  }

  #words(value) {
    return value === null || value === undefined ? "–" : `${value >= 100 ? Math.round(value) : +value.toFixed(1)}${this.unit}`;
  }

  #point(x) {
    this.pointer = x;
    this.draw();
  }

  draw() {
    const { canvas } = this;
    const width = canvas.clientWidth;
    const height = canvas.clientHeight;
    if (!width || !this.times.length) return;
    const scale = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.#layout(width, height);
    const style = getComputedStyle(canvas);
    if (this.axes) this.#grid(pen, style);
    for (const one of this.series) this.#line(pen, style, one);
    if (this.pointer != null) this.#cross(pen, style);
  }

  #layout(width, height) {
    const end = this.times.at(-1);
    const values = this.series.flatMap((one) => one.values).filter((value) => value !== null);
    const top = this.top ?? nice(Math.max(1, ...values) * 1.15);
    const box = this.axes ? { left: 40, right: width - 6, up: 10, down: height - 20 } : { left: 0, right: width, up: 3, down: height - 1 };
    Object.assign(this, { box, end, ceiling: top });
    this.span = Math.min(WINDOW, Math.max(SHORTEST, end - this.times[0]));
    this.x = (time) => box.right - ((end - time) / this.span) * (box.right - box.left);
    this.y = (value) => box.down - (Math.min(value, top) / top) * (box.down - box.up);
  }

  #grid(pen, style) {
    const { box } = this;
    pen.font = `11px ${style.fontFamily}`;
    pen.fillStyle = style.getPropertyValue("--faint");
    pen.strokeStyle = style.getPropertyValue("--line");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const part of [0, 0.5, 1]) {
      const y = Math.round(this.y(this.ceiling * part)) + 0.5;
      pen.beginPath();
      pen.moveTo(box.left, y);
      pen.lineTo(box.right, y);
      pen.stroke();
      pen.fillText(short(this.ceiling * part), box.left - 7, y);
    }
    pen.textBaseline = "alphabetic";
    for (const [part, align] of [[1, "left"], [0.5, "center"], [0, "right"]]) {
      pen.textAlign = align;
      pen.fillText(since(this.span * part), this.x(this.end - this.span * part), box.down + 15);
    }
  }

  #line(pen, style, one) {
    const { box } = this;
    const color = style.getPropertyValue(one.color).trim();
    pen.save();
    pen.beginPath();
    pen.rect(box.left, 0, box.right - box.left, box.down + 1);
    pen.clip();
    for (const run of runs(this.times, one.values, this.end - this.span - 5)) {
      const trace = () => run.forEach(([time, value], i) => pen[i ? "lineTo" : "moveTo"](this.x(time), this.y(value)));
      const fill = pen.createLinearGradient(0, box.up, 0, box.down);
      fill.addColorStop(0, fade(color, 0.34));
      fill.addColorStop(1, fade(color, 0.03));
      pen.beginPath();
      trace();
      pen.lineTo(this.x(run.at(-1)[0]), box.down);
      pen.lineTo(this.x(run[0][0]), box.down);
      pen.fillStyle = fill;
      pen.fill();
      pen.beginPath();
      trace();
      pen.strokeStyle = color;
      pen.lineWidth = this.axes ? 1.8 : 1.5;
      pen.lineJoin = "round";
      pen.stroke();
    }
    pen.restore();
  }

  #cross(pen, style) {
    const { box } = this;
    const time = this.end - ((box.right - this.pointer) / (box.right - box.left)) * this.span;
    let nearest = 0;
    this.times.forEach((one, i) => { if (Math.abs(one - time) < Math.abs(this.times[nearest] - time)) nearest = i; });
    const x = this.x(this.times[nearest]);
    if (x < box.left - 1) return;
    pen.strokeStyle = style.getPropertyValue("--faint");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(Math.round(x) + 0.5, box.up);
    pen.lineTo(Math.round(x) + 0.5, box.down);
    pen.stroke();
    const words = this.series.map((one) => `${one.name} ${this.#words(one.values[nearest])}`).join("   ");
    const ago = Math.round(this.end - this.times[nearest]);
    const text = `${words}   ${ago ? `${ago} s ago` : "now"}`;
    pen.font = `12px ${style.fontFamily}`;
    const width = pen.measureText(text).width + 16;
    const left = Math.max(box.left, Math.min(x + 8, box.right - width));
    pen.fillStyle = style.getPropertyValue("--ink");
    pen.beginPath();
    pen.roundRect(left, box.up, width, 22, 6);
    pen.fill();
    pen.fillStyle = style.getPropertyValue("--card");
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillText(text, left + 8, box.up + 11.5);
  }
}

/** A colour of the style sheet (#rrggbb) with an alpha. */
const fade = (color, alpha) => color + Math.round(alpha * 255).toString(16).padStart(2, "0");

/** The stretches of a series that have values. */
function runs(times, values, from) {
  const found = [];
  let run = [];
  values.forEach((value, i) => {
    if (value === null || value === undefined || times[i] < from) return;
    if (run.length && times[i] - run.at(-1)[0] > 10) found.push(run), (run = []);
    run.push([times[i], value]);
  });
  if (run.length) found.push(run);
  return found;
}

function since(seconds) {
  if (!seconds) return "now";
  return seconds < 120 ? `${Math.round(seconds)} s ago` : `${+(seconds / 60).toFixed(1)} min ago`;
}

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

function short(value) {
  if (value >= 1e6) return `${+(value / 1e6).toFixed(1)}M`;
  if (value >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
  return String(+value.toFixed(1));
}
