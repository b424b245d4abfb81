// The chat: what was said, and the answer as it comes.

import { ServerError, events, getKey, request, setKey } from "./api.js";
import { element, markdown } from "./markdown.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"];
const SETTINGS = ["system", "thinking", ...NUMBERS];
const KEPT = "strata-chat";

const $ = (id) => document.getElementById(id);
const [list, question, send, stop, note] = ["messages", "question", "send", "stop", "note"].map($);

/// `{ role, content, thinking, problem, line }`, as shown; `content` alone goes to the model.
let messages = [];
let model = "";
/// Of the answer that is being written.
let aborter;

// What is said

function render() {
  list.replaceChildren(...messages.map(message));
  list.scrollTop = list.scrollHeight;
}

function message(said, index) {
  const made = element("article", `message ${said.role}`);
  made.setAttribute("aria-label", said.role === "user" ? "You" : "Answer");
  fill(made, said, index);
  return made;
}

function fill(made, said, index) {
  const isWriting = aborter !== undefined && index === messages.length - 1;
  made.classList.toggle("writing", isWriting && said.role === "assistant");
  if (said.role === "user") {
    made.replaceChildren(said.content, acts(said, index));
    return;
  }
  const parts = [];
  if (said.thinking) {
    const folded = element("details", "", element("summary", "", said.content || !isWriting ? "Thoughts" : "Thinking …"));
    folded.append(element("div", "", said.thinking));
    folded.open = made.querySelector("details")?.open ?? false;
    parts.push(folded);
  }
  parts.push(element("div", "text", markdown(said.content)));
  if (said.problem) parts.push(element("p", "problem", said.problem));
  if (!isWriting) parts.push(acts(said, index));
  made.replaceChildren(...parts);
}

function acts(said, index) {
  const made = element("div", "acts");
  const button = (label, act) => {
    const one = element("button", "", label);
    one.type = "button";
    one.addEventListener("click", act);
    made.append(one);
  };
  if (said.role === "user") {
    button("Edit", () => edit(index));
  } else {
    if (index === messages.length - 1) button("Regenerate", regenerate);
    button("Copy", () => navigator.clipboard.writeText(said.content).catch(() => tell("the browser does not let this page copy", true)));
    if (said.line) made.append(element("span", "", said.line));
  }
  return made;
}

function tell(text, isBad = false) {
  note.textContent = text;
  note.classList.toggle("bad", isBad);
}

// What is asked

function edit(index) {
  if (aborter) return;
  question.value = messages[index].content;
  messages.length = index;
  keep();
  render();
  question.focus();
  fit();
}

function regenerate() {
  if (aborter || messages.at(-1)?.role !== "assistant") return;
  messages.pop();
  answer();
}

function ask() {
  const content = question.value.trim();
  if (!content || aborter) return;
  question.value = "";
  fit();
  messages.push({ role: "user", content });
  answer();
}

function body() {
  const system = $("system").value.trim();
  const told = messages.slice(0, -1).map(({ role, content }) => ({ role, content }));
  const made = {
    model,
    messages: system ? [{ role: "system", content: system }, ...told] : told,
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of NUMBERS) {
    if ($(name).value !== "") made[name] = Number($(name).value);
  }
  if ($("thinking").value) made.chat_template_kwargs = { enable_thinking: $("thinking").value === "on" };
  return made;
}

async function answer() {
  const said = { role: "assistant", content: "", thinking: "" };
  messages.push(said);
  aborter = new AbortController();
  working(true);
  render();
  tell("Reading …");
  const started = performance.now();
  let isDrawn = true;
  const draw = () => {
    if (!isDrawn) return;
    isDrawn = false;
    requestAnimationFrame(() => {
      isDrawn = true;
      const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
      if (list.lastElementChild) fill(list.lastElementChild, said, messages.length - 1);
      if (isAtEnd) list.scrollTop = list.scrollHeight;
    });
  };
  let firstAt;
  let usage;
  let finish;
  try {
    const response = await request("v1/chat/completions", body(), aborter.signal);
    for await (const data of events(response)) {
      if (data === "[DONE]") break;
      const part = JSON.parse(data);
      if (part.error) throw new ServerError(0, part.error.message);
      usage = part.usage ?? usage;
      const choice = part.choices?.[0];
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      const { content, reasoning_content: thinking } = choice.delta ?? {};
      if (content || thinking) firstAt ??= performance.now();
      said.content += content ?? "";
      said.thinking += thinking ?? "";
      if (firstAt) tell("Writing … Esc stops");
      draw();
    }
    said.line = summary(usage, started, firstAt);
    if (finish === "length") said.problem = "The answer is longer than what was allowed or fits.";
    tell("");
  } catch (error) {
    const isStopped = error.name === "AbortError";
    said.problem = isStopped ? "" : error.message;
    said.line = isStopped ? "stopped" : "";
    tell(isStopped ? "Stopped." : error.message, !isStopped);
    if (error.status === 401) openSettings(true, "key");
  }
  aborter = undefined;
  working(false);
  keep();
  render();
}

function summary(usage, started, firstAt) {
  if (!usage) return "";
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const read = `${usage.prompt_tokens} tokens read${cached ? `, ${cached} of them from before` : ""}`;
  const seconds = firstAt ? (performance.now() - firstAt) / 1000 : 0;
  const speed = seconds > 0 ? `, ${(usage.completion_tokens / seconds).toFixed(1)} tok/s` : "";
  const wait = firstAt ? `, first after ${((firstAt - started) / 1000).toFixed(1)} s` : "";
  return `${read}, ${usage.completion_tokens} written${speed}${wait}`;
}

function working(is) {
  send.hidden = is;
  stop.hidden = !is;
}

// What is kept in this browser

function keep() {
  const settings = Object.fromEntries(SETTINGS.map((name) => [name, $(name).value]));
  try {
    localStorage.setItem(KEPT, JSON.stringify({ messages, settings }));
  } catch {
    // A full or forbidden storage: the chat lives as long as the page.
  }
}

function recall() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEPT) ?? "{}");
    if (Array.isArray(kept.messages)) {
      messages = kept.messages.filter((said) => ["user", "assistant"].includes(said.role) && typeof said.content === "string");
    }
    for (const name of SETTINGS) $(name).value = kept.settings?.[name] ?? "";
  } catch {
    messages = [];
  }
}

// The page

function fit() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight + 2}px`;
}

function newChat() {
  aborter?.abort();
  messages = [];
  keep();
  render();
  tell("");
  question.focus();
}

function openSettings(is, focus) {
  $("settings").hidden = !is;
  $("settings-toggle").setAttribute("aria-expanded", String(is));
  if (is) $(focus).focus();
  else question.focus();
}

function toggleMonitor() {
  const panel = $("monitor");
  panel.hidden = !panel.hidden;
  $("monitor-toggle").setAttribute("aria-expanded", String(!panel.hidden));
}

async function findModel() {
  try {
    const models = await (await request("v1/models")).json();
    model = models.data[0].id;
    $("model").textContent = model;
    document.title = `Strata · ${model}`;
    tell(note.textContent);
  } catch (error) {
    if (error.status === 401) openSettings(true, "key");
    tell(error.message, true);
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
question.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    ask();
  } else if (event.key === "ArrowUp" && !question.value) {
    const last = messages.findLastIndex((said) => said.role === "user");
    if (last >= 0) {
      event.preventDefault();
      edit(last);
    }
  }
});
question.addEventListener("input", fit);
stop.addEventListener("click", () => aborter?.abort());
$("new").addEventListener("click", newChat);
$("settings-toggle").addEventListener("click", () => openSettings($("settings").hidden, "system"));
$("monitor-toggle").addEventListener("click", toggleMonitor);
$("settings").addEventListener("submit", (event) => event.preventDefault());
$("settings").addEventListener("change", (event) => {
  if (event.target.id === "key") {
    setKey(event.target.value);
    findModel();
    document.dispatchEvent(new Event("strata-key"));
  } else {
    keep();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    if (aborter) aborter.abort();
    else if (!$("settings").hidden) openSettings(false);
  }
  if (!event.altKey || event.ctrlKey || event.metaKey) return;
  const act = {
    KeyN: newChat,
    KeyS: () => openSettings($("settings").hidden, "system"),
    KeyM: toggleMonitor,
    KeyR: regenerate,
  }[event.code];
  if (act) {
    event.preventDefault();
    act();
  }
});

recall();
$("key").value = getKey();
render();
fit();
findModel();
