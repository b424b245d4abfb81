"use strict";
(() => {
const get = (id) => document.getElementById(id);
const D = JSON.parse(get("data").textContent);
function column(id) {
  const text = atob(get(id).textContent), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes.buffer;
}
// Spans lie lane by lane, each lane by beginning; times are in ticks.
const START = new Uint32Array(column("start")), LENGTH = new Uint32Array(column("length"));
const NAME = new Uint16Array(column("name")), LAYER = new Uint16Array(column("layer"));
const BYTES = new Uint32Array(column("bytes")), CLASS = new Uint8Array(column("class"));
const NONE = 65535, CLASSES = ["demand", "ahead", "hot"];
const ALL = Math.max(1, D.wall_ns / D.tick_ns), LEAST = Math.min(ALL, 200 / D.tick_ns + 1);
// The latest end of a lane up to and with each span.
const LATEST = new Uint32Array(START.length);
for (const lane of D.lanes) {
  for (let i = lane.first, latest = 0; i < lane.first + lane.count; i++) {
    LATEST[i] = latest = Math.max(latest, START[i] + LENGTH[i]);
  }
}

const overview = get("overview"), main = get("main"), plot = get("plot"), tip = get("tip"), cursor = get("cursor");
const AXIS = 20, GAP = 3;
let height = AXIS, low = 0;
for (const row of D.rows) {
  row.y = height;
  // Of the low rows of readers, each fourth has its name.
  const isNamed = row.height >= 12 || low++ % 4 === 0;
  height += row.height + (row.height < 8 ? 1 : GAP);
  for (const [text, into] of [[row.label, get("labels")], [row.note, get("notes")]]) {
    if (!text || !isNamed) continue;
    const div = document.createElement("div"), lines = text.split("\n").length;
    div.textContent = text;
    div.style.top = row.y + (row.height - 15 * lines) / 2 + "px";
    into.append(div);
  }
}
plot.style.height = main.style.height = height + "px";

// ---- Colors

let colors = {};
function readColors() {
  const style = getComputedStyle(document.documentElement);
  const rgb = (name) => {
    const hex = style.getPropertyValue("--" + name).trim();
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  };
  const page = rgb("panel");
  colors = { ink: style.getPropertyValue("--ink"), muted: style.getPropertyValue("--muted"), line: style.getPropertyValue("--line") };
  for (const name of ["drive", "compute", "demand", "ahead", "hot", "rows", "mixer", "experts", "head", "waits", "idle", "lane"]) {
    const color = rgb(name === "compute" ? "mixer" : name);
    colors[name] = [color, color.map((value, i) => value * 0.72 + page[i] * 0.28)];
  }
  colors.layers = [colors.lane[0], colors.lane[0].map((value, i) => value * 0.8 + rgb("muted")[i] * 0.2)];
}
function colorOf(lane, i) {
  const pair = colors[lane.color === "class" ? CLASSES[CLASS[i]] : lane.color];
  return pair[LAYER[i] === NONE ? 0 : LAYER[i] & 1];
}

// ---- Finding spans

/** The first span of a lane that ends after `t`, or the end of the lane. */
function firstAfter(lane, t) {
  let low = lane.first, high = lane.first + lane.count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (LATEST[middle] > t) high = middle; else low = middle + 1;
  }
  return low;
}
/** The span of a lane at `t` that began last, or -1. */
function spanAt(lane, t) {
  let found = -1;
  for (let i = firstAfter(lane, t); i < lane.first + lane.count && START[i] <= t; i++) {
    if (START[i] + LENGTH[i] > t) found = i;
  }
  return found;
}
/** The time around `t` in which a lane has no span. */
function gapAt(lane, t) {
  const i = firstAfter(lane, t), end = lane.first + lane.count;
  return [i > lane.first ? LATEST[i - 1] : 0, i < end ? START[i] : ALL];
}

// ---- Drawing: each pixel of a row has the colors of what it covers, by their shares of its time

let view = [0, ALL], sums = new Float32Array(0);
function paint(context, row, y, h, width, from, to, edge) {
  if (sums.length < 4 * width) sums = new Float32Array(4 * width);
  sums.fill(0);
  const scale = width / (to - from);
  const add = (x, share, color) => {
    const at = 4 * x;
    sums[at] += share * color[0]; sums[at + 1] += share * color[1]; sums[at + 2] += share * color[2]; sums[at + 3] += share;
  };
  for (const number of row.lanes) {
    const lane = D.lanes[number], end = lane.first + lane.count;
    for (let i = firstAfter(lane, from); i < end && START[i] < to; i++) {
      const x0 = Math.max(0, (START[i] - from) * scale);
      let x1 = Math.min(width, (START[i] + LENGTH[i] - from) * scale);
      if (x1 <= x0) continue;
      if (x1 - x0 > 4 * edge) x1 -= edge;
      const color = colorOf(lane, i), first = x0 | 0, last = Math.min(x1 | 0, width - 1);
      if (first === last) { add(first, x1 - x0, color); continue; }
      add(first, first + 1 - x0, color);
      for (let x = first + 1; x < last; x++) add(x, 1, color);
      add(last, x1 - last, color);
    }
  }
  const image = context.createImageData(width, h), pixels = image.data, line = 4 * width;
  const back = row.idle === null ? colors.lane[0] : colors.idle[0];
  // A wait much shorter than a pixel must still be seen.
  const least = row.label === "waits" ? 0.6 : 0.08;
  for (let x = 0; x < width; x++) {
    const at = 4 * x, share = sums[at + 3];
    let cover = Math.min(1, share);
    if (share > 0 && row.idle === null) cover = Math.max(cover, least);
    for (let c = 0; c < 3; c++) pixels[at + c] = share > 0 ? back[c] + (sums[at + c] / share - back[c]) * cover : back[c];
    pixels[at + 3] = 255;
  }
  for (let done = line; done < pixels.length; done *= 2) pixels.copyWithin(done, 0, Math.min(done, pixels.length - done));
  context.putImageData(image, 0, y);
}

function seconds(ns) {
  if (ns === 0) return "0 s";
  const abs = Math.abs(ns);
  if (abs >= 1e10) return (ns / 1e9).toFixed(1) + " s";
  if (abs >= 1e9) return (ns / 1e9).toFixed(2) + " s";
  if (abs >= 1e6) return (ns / 1e6).toFixed(abs >= 1e7 ? 1 : 2) + " ms";
  return (ns / 1e3).toFixed(abs >= 1e4 ? 0 : 2) + " us";
}

function drawAxis(context, width) {
  const [from, to] = view, wanted = (to - from) * D.tick_ns / Math.max(2, width / 110);
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = [1, 2, 5, 10].find((n) => n * power >= wanted) * power;
  const unit = step >= 1e8 ? [1e9, " s"] : step >= 1e5 ? [1e6, " ms"] : [1e3, " us"];
  const digits = Math.max(0, Math.ceil(Math.log10(unit[0] / step) - 1e-9));
  context.fillStyle = colors.muted; context.strokeStyle = colors.line;
  context.textAlign = "left";
  for (let n = Math.ceil(from * D.tick_ns / step); n * step <= to * D.tick_ns; n++) {
    const x = (n * step / D.tick_ns - from) / (to - from) * width;
    context.fillRect(Math.round(x), AXIS - 6, 1, 4);
    context.fillText((n * step / unit[0]).toFixed(digits) + unit[1], x + 3, 12);
  }
}

/** Words where there is room for them: layers, names of spans, idle times. */
function drawWords(context, width) {
  const [from, to] = view, scale = width / (to - from);
  const each = (lane, least, put) => {
    for (let i = firstAfter(lane, from), end = lane.first + lane.count; i < end && START[i] < to; i++) {
      const x0 = Math.max(0, (START[i] - from) * scale), x1 = Math.min(width, (START[i] + LENGTH[i] - from) * scale);
      if (x1 - x0 >= least) put(i, x0, x1);
    }
  };
  const word = (text, x0, x1, row) => {
    if (context.measureText(text).width < x1 - x0 - 4) context.fillText(text, (x0 + x1) / 2, row.y + row.height / 2 + 4);
  };
  context.textAlign = "center";
  for (const row of D.rows) {
    if (row.idle !== null) {
      context.fillStyle = colors.ink;
      const lane = D.lanes[row.idle], end = lane.first + lane.count;
      for (let i = firstAfter(lane, from); i <= end; i++) {
        const start = i > lane.first ? LATEST[i - 1] : 0, stop = i < end ? START[i] : ALL;
        if (start >= to) break;
        const x0 = Math.max(0, (start - from) * scale), x1 = Math.min(width, (stop - from) * scale);
        // Where computation waits, the wait has its own words.
        const isIdle = () => row.lanes.every((number) => spanAt(D.lanes[number], (start + stop) / 2) < 0);
        if (x1 - x0 > 30 && isIdle()) word("idle " + seconds((stop - start) * D.tick_ns), x0, x1, row);
      }
    }
    if (row.height < 14) continue;
    for (const number of row.lanes.filter((number) => number !== row.idle)) {
      const isLayers = number === D.layers;
      context.fillStyle = isLayers ? colors.ink : "#fff";
      each(D.lanes[number], isLayers ? 12 : 34, (i, x0, x1) =>
        word(isLayers ? String(LAYER[i]) : D.names[NAME[i]], x0, x1, row));
    }
  }
  context.fillStyle = colors.muted;
  context.globalAlpha = 0.25;
  each(D.lanes[D.layers], 7, (i, x0) => context.fillRect(Math.round(x0), AXIS, 1, height - AXIS));
  context.globalAlpha = 1;
}

function sized(canvas, cssHeight) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(50, Math.round(canvas.clientWidth * ratio)), tall = Math.round(cssHeight * ratio);
  if (canvas.width !== width || canvas.height !== tall) { canvas.width = width; canvas.height = tall; }
  return ratio;
}

let strip = null;
function draw() {
  const ratio = sized(main, height), context = main.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, main.width, main.height);
  for (const row of D.rows) {
    const y = Math.round(row.y * ratio), h = Math.max(1, Math.round((row.y + row.height) * ratio) - y);
    paint(context, row, y, h, main.width, view[0], view[1], row.idle === null ? ratio : 0);
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  drawAxis(context, main.clientWidth);
  drawWords(context, main.clientWidth);
  drawOverview();
  get("range").textContent = seconds((view[1] - view[0]) * D.tick_ns) + " shown\nfrom " + seconds(view[0] * D.tick_ns);
}
/** The whole run, painted once for each size and theme, and the part of it that the chart shows. */
function drawOverview() {
  const ratio = sized(overview, 34), context = overview.getContext("2d"), { width } = overview;
  if (!strip || strip.width !== width) {
    strip = document.createElement("canvas");
    strip.width = width; strip.height = overview.height;
    const half = Math.floor(overview.height / 2), onto = strip.getContext("2d");
    D.rows.filter((row) => row.idle !== null).forEach((row, i) => paint(onto, row, i * half, half - 1, width, 0, ALL, 0));
  }
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, width, overview.height);
  context.drawImage(strip, 0, 0);
  const x0 = view[0] / ALL * width, x1 = Math.max(x0 + 3 * ratio, view[1] / ALL * width);
  if (x1 - x0 < width - 1) {
    context.fillStyle = "rgb(128 128 128 / .55)";
    context.fillRect(0, 0, x0, overview.height);
    context.fillRect(x1, 0, width - x1, overview.height);
    context.strokeStyle = colors.ink; context.lineWidth = ratio;
    context.strokeRect(x0, 0, x1 - x0, overview.height);
  }
}

let isWaiting = false;
function redraw() {
  if (isWaiting) return;
  isWaiting = true;
  requestAnimationFrame(() => { isWaiting = false; draw(); });
}
function show(from, to) {
  const span = Math.min(ALL, Math.max(LEAST, to - from));
  const start = Math.min(ALL - span, Math.max(0, (from + to - span) / 2));
  view = [start, start + span];
  redraw();
}
function zoom(factor, around = (view[0] + view[1]) / 2) {
  const span = Math.min(ALL, Math.max(LEAST, (view[1] - view[0]) * factor));
  const start = around - (around - view[0]) * span / (view[1] - view[0]);
  show(start, start + span);
}
function move(part) {
  const by = part * (view[1] - view[0]);
  const kept = Math.min(ALL - view[1], Math.max(-view[0], by));
  show(view[0] + kept, view[1] + kept);
}

// ---- What is under the pointer

const timeAt = (event) => {
  const box = main.getBoundingClientRect();
  return view[0] + (event.clientX - box.left) / box.width * (view[1] - view[0]);
};
function describe(row, t) {
  const pixel = (view[1] - view[0]) / main.clientWidth, ns = (ticks) => seconds(ticks * D.tick_ns);
  const lines = [];
  for (const number of row.lanes) {
    const lane = D.lanes[number], i = spanAt(lane, t);
    let many = 0;
    for (let j = firstAfter(lane, t - pixel / 2); j < lane.first + lane.count && START[j] < t + pixel / 2; j++) many++;
    if (number !== row.idle && number !== D.layers && many > 3) lines.push(many + " spans of " + lane.label + " in this pixel, one of them:");
    if (i < 0) continue;
    const layer = LAYER[i] === NONE ? "" : ", layer " + LAYER[i];
    if (number === D.layers) lines.push("layer " + LAYER[i]);
    else if (number === row.idle) lines.push(lane.label + " busy");
    else lines.push(lane.label + ": " + D.names[NAME[i]] + layer);
    lines.push(ns(LENGTH[i]) + " from " + ns(START[i]));
    if (BYTES[i]) lines.push((BYTES[i] / 1e6).toFixed(3) + " MB, " + (BYTES[i] / Math.max(1, LENGTH[i] * D.tick_ns)).toFixed(2) + " GB/s");
  }
  if (!lines.length && row.idle !== null) {
    const [start, stop] = gapAt(D.lanes[row.idle], t);
    lines.push(row.label + " idle", ns(stop - start) + " from " + ns(start));
  }
  const layer = spanAt(D.lanes[D.layers], t);
  if (lines.length && layer >= 0 && !row.lanes.includes(D.layers)) lines.push("computing layer " + LAYER[layer]);
  return lines.join("\n");
}
function hover(event) {
  const box = main.getBoundingClientRect(), y = event.clientY - box.top, t = timeAt(event);
  cursor.hidden = false;
  cursor.style.left = event.clientX - box.left + "px";
  const row = D.rows.find((row) => y >= row.y && y < row.y + row.height);
  const text = row ? describe(row, t) : "";
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 8) + "px";
}

// ---- Mouse, keys, buttons

let drag = null;
plot.addEventListener("wheel", (event) => {
  event.preventDefault();
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / 1000);
  else zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 400))), timeAt(event));
  hover(event);
}, { passive: false });
plot.addEventListener("pointerdown", (event) => {
  drag = event.clientX;
  plot.setPointerCapture(event.pointerId);
  plot.classList.add("is-dragged");
});
plot.addEventListener("pointermove", (event) => {
  if (drag !== null) { move((drag - event.clientX) / main.clientWidth); drag = event.clientX; }
  hover(event);
});
for (const end of ["pointerup", "pointercancel"]) {
  plot.addEventListener(end, () => { drag = null; plot.classList.remove("is-dragged"); });
}
plot.addEventListener("pointerleave", () => { tip.hidden = cursor.hidden = true; });
plot.addEventListener("dblclick", (event) => {
  const i = spanAt(D.lanes[D.layers], timeAt(event));
  if (i >= 0) show(START[i] - LENGTH[i] * 0.03, START[i] + LENGTH[i] * 1.03); else show(0, ALL);
});
const toOverview = (event) => {
  const box = overview.getBoundingClientRect(), half = (view[1] - view[0]) / 2;
  const at = Math.min(ALL - half, Math.max(half, (event.clientX - box.left) / box.width * ALL));
  show(at - half, at + half);
};
overview.addEventListener("pointerdown", (event) => { overview.setPointerCapture(event.pointerId); toOverview(event); });
overview.addEventListener("pointermove", (event) => { if (event.buttons) toOverview(event); });
const keys = {
  ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), PageUp: () => move(-1), PageDown: () => move(1),
  "+": () => zoom(0.6), "=": () => zoom(0.6), ArrowUp: () => zoom(0.6), "-": () => zoom(1 / 0.6), ArrowDown: () => zoom(1 / 0.6),
  0: () => show(0, ALL), Escape: () => show(0, ALL),
  Home: () => show(0, view[1] - view[0]), End: () => show(ALL - (view[1] - view[0]), ALL),
};
plot.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
get("zoom-in").onclick = keys["+"];
get("zoom-out").onclick = keys["-"];
get("zoom-all").onclick = keys[0];
for (const button of document.querySelectorAll("button[data-row]")) {
  button.onclick = () => {
    const start = button.dataset.start / D.tick_ns, end = button.dataset.end / D.tick_ns, margin = (end - start) * 1.5;
    show(start - margin, end + margin);
    plot.scrollIntoView({ block: "nearest", behavior: "smooth" });
    plot.focus({ preventScroll: true });
  };
}
function restyle() { readColors(); strip = null; redraw(); }
get("theme").onclick = () => {
  const root = document.documentElement, isDark = getComputedStyle(root).colorScheme === "dark";
  root.dataset.theme = isDark ? "light" : "dark";
  restyle();
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
new ResizeObserver(redraw).observe(plot);
restyle();
})();
