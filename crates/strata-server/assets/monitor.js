// The monitor: what the server says of itself, twice a second.

import { events, request } from "./api.js";
import { element } from "./markdown.js";

/// Samples of a chart.
const KEPT = 120;
/// Before trying again.
const RETRY_MS = 3000;

const $ = (id) => document.getElementById(id);
const speeds = { decode: [], prompt: [] };
const drive = [];

function number(value, digits = 1) {
  return value >= 100 ? String(Math.round(value)) : value.toFixed(digits);
}

function bytes(value) {
  const [unit, name] = value >= 1e9 ? [1e9, "GB"] : value >= 1e6 ? [1e6, "MB"] : [1e3, "KB"];
  return `${number(value / unit)} ${name}`;
}

function push(samples, value) {
  samples.push(value);
  if (samples.length > KEPT) samples.shift();
}

/// A canvas in the pixels of the screen, cleared, and its size in those of the page.
function cleared(id) {
  const canvas = $(id);
  const scale = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return { context, width, height };
}

/// The colour of a variable of the style sheet. (A custom property itself is not computed to a colour.)
function colour(name) {
  const swatch = $("swatch") ?? $("monitor").appendChild(Object.assign(element("i"), { id: "swatch", hidden: true }));
  swatch.style.color = `var(--${name})`;
  return getComputedStyle(swatch).color;
}

function chart(id, lines) {
  const { context, width, height } = cleared(id);
  const most = Math.max(1e-9, ...lines.flatMap(({ samples }) => samples));
  for (const { samples, name } of lines) {
    context.strokeStyle = colour(name);
    context.lineWidth = 1.5;
    context.beginPath();
    samples.forEach((value, at) => {
      const x = width - (samples.length - 1 - at) * (width / (KEPT - 1));
      const y = height - 1 - (value / most) * (height - 14);
      if (at === 0) context.moveTo(x, y);
      else context.lineTo(x, y);
    });
    context.stroke();
  }
  context.fillStyle = colour("quiet");
  context.font = "11px system-ui";
  if (most > 1e-6) context.fillText(number(most), 2, 11);
}

function arenaMap({ resident_by_layer: layers, experts }) {
  const { context, width, height } = cleared("arena-map");
  const step = width / Math.max(1, layers.length);
  layers.forEach((resident, layer) => {
    const part = experts ? resident / experts : 0;
    context.fillStyle = colour("edge");
    context.fillRect(layer * step, 0, Math.max(1, step - 1), height);
    context.fillStyle = colour("resident");
    context.fillRect(layer * step, height * (1 - part), Math.max(1, step - 1), height * part);
  });
}

function bar(id, parts) {
  const whole = parts.reduce((sum, [, part]) => sum + part, 0);
  const pieces = parts.map(([className, part]) => {
    const piece = element("i", className);
    piece.style.width = `${whole ? (100 * part) / whole : 0}%`;
    return piece;
  });
  $(id).replaceChildren(...pieces);
}

function row(name, ...cells) {
  return element("tr", "", ...cells.map((cell) => element(name, "", String(cell))));
}

function show(status) {
  push(speeds.decode, status.decode_tok_s);
  push(speeds.prompt, status.prompt_tok_s);
  push(drive, status.drive.bytes_s / 1e9);
  $("decode").textContent = number(status.decode_tok_s);
  $("prompt").textContent = number(status.prompt_tok_s);
  $("drive").textContent = number(status.drive.bytes_s / 1e9, 2);
  $("busy").textContent = `${Math.round(100 * status.drive.busy)} %`;
  if ($("monitor").hidden) return;

  chart("speed-chart", [
    { samples: speeds.decode, name: "accent" },
    { samples: speeds.prompt, name: "missed" },
  ]);
  chart("drive-chart", [{ samples: drive, name: "resident" }]);

  const { resident_bytes: resident, ahead_bytes: ahead, missed_bytes: missed } = status.lookups;
  const all = resident + ahead + missed;
  bar("lookups", [["resident", resident], ["ahead", ahead], ["missed", missed]]);
  const percent = (part) => (all ? `${Math.round((100 * part) / all)} %` : "–");
  $("lookup-text").textContent = `${percent(resident)} / ${percent(ahead)} / ${percent(missed)}`;

  const { slots, slot_bytes: slotBytes } = status.arena;
  $("arena-text").textContent = `${slots} slots, ${bytes(slots * slotBytes)}, by layer`;
  arenaMap(status.arena);

  const { plan, plan_bytes: planBytes, rss_bytes: rss, peak_rss_bytes: peak } = status.memory;
  $("memory-text").textContent = `${bytes(rss)} of ${bytes(planBytes)} planned, peak ${bytes(peak)}`;
  const used = element("i");
  used.style.width = `${Math.min(100, planBytes ? (100 * rss) / planBytes : 0)}%`;
  $("memory").replaceChildren(used);
  $("plan").replaceChildren(...plan.map(([name, part]) => row("td", name, bytes(part))));

  $("queue-text").textContent = `${status.active.length} of ${status.parallel} at work, ${status.queued} waiting`;
  const requests = status.active.map((one) => {
    const done =
      one.phase === "reading"
        ? `${Math.round(100 * one.progress)} % of ${one.prompt_tokens}`
        : `${one.written_tokens} written`;
    return row("td", `#${one.id}`, one.phase, done, `${Math.round(one.age_s)} s`);
  });
  $("requests").replaceChildren(...(requests.length ? [row("th", "", "", "tokens", "age"), ...requests] : []));
  const reused = status.reused_tokens ? `, ${status.reused_tokens} of them kept from before` : "";
  $("counts").textContent =
    `${status.done} answers, ${status.failed} failed, ${status.cancelled} given up; ` +
    `${status.prompt_tokens} tokens read${reused}, ${status.written_tokens} written; ` +
    `${bytes(status.drive.read_bytes)} from the drive.`;
}

let again = new AbortController();

async function watch() {
  for (;;) {
    again = new AbortController();
    try {
      const response = await request("v1/status/events", undefined, again.signal);
      for await (const data of events(response)) show(JSON.parse(data));
    } catch {
      for (const id of ["decode", "prompt", "drive", "busy"]) $(id).textContent = "–";
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

// With another key, another try.
document.addEventListener("strata-key", () => again.abort());
watch();
