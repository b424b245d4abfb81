// The Markdown that models write, as elements. Text only ever becomes text nodes, so nothing in an answer can run.

const FENCE = /^( {0,3})(```+|~~~+)\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}>\s?(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

export function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

export function markdown(text) {
  const made = document.createDocumentFragment();
  blocks(text.split("\n"), made, 0);
  return made;
}

/// The blocks of `lines`; quotes and lists nest, up to a depth that no honest text has.
function blocks(lines, into, depth) {
  let at = 0;
  let paragraph = [];
  const endParagraph = () => {
    if (paragraph.length) into.append(element("p", "", ...inline(paragraph.join("\n"))));
    paragraph = [];
  };
  while (at < lines.length) {
    const line = lines[at];
    let found;
    if ((found = FENCE.exec(line))) {
      endParagraph();
      const [, indent, fence, language] = found;
      const code = [];
      for (at++; at < lines.length && !closes(lines[at], fence); at++) {
        code.push(lines[at].startsWith(indent) ? lines[at].slice(indent.length) : lines[at]);
      }
      at++;
      into.append(codeBlock(code.join("\n"), language));
    } else if ((found = HEADING.exec(line))) {
      endParagraph();
      into.append(element(`h${Math.min(found[1].length, 4)}`, "", ...inline(found[2])));
      at++;
    } else if (RULE.test(line)) {
      endParagraph();
      into.append(element("hr"));
      at++;
    } else if (depth < 8 && QUOTE.test(line)) {
      endParagraph();
      const inner = [];
      for (; at < lines.length && (found = QUOTE.exec(lines[at])); at++) inner.push(found[1]);
      const quote = element("blockquote");
      blocks(inner, quote, depth + 1);
      into.append(quote);
    } else if (depth < 8 && (found = ITEM.exec(line))) {
      endParagraph();
      at = list(lines, at, into, depth);
    } else if (line.includes("|") && at + 1 < lines.length && TABLE_RULE.test(lines[at + 1])) {
      endParagraph();
      at = table(lines, at, into);
    } else {
      if (line.trim()) paragraph.push(line);
      else endParagraph();
      at++;
    }
  }
  endParagraph();
}

function closes(line, fence) {
  const trimmed = line.trim();
  return trimmed.length >= fence.length && trimmed === fence[0].repeat(trimmed.length);
}

/// One list; gives the line after it.
function list(lines, at, into, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(mark);
  const made = element(isOrdered ? "ol" : "ul");
  if (isOrdered) made.start = Number.parseInt(mark, 10);
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || found[1].length !== indent.length || /\d/.test(found[2]) !== isOrdered) break;
    const inner = [found[3]];
    const width = lines[at].length - found[3].length;
    for (at++; at < lines.length; at++) {
      const line = lines[at];
      const depthOfLine = line.length - line.trimStart().length;
      const isBlank = !line.trim();
      const next = lines[at + 1] ?? "";
      const goesOn = isBlank
        ? next.trim() && next.length - next.trimStart().length > indent.length
        : depthOfLine > indent.length;
      if (!goesOn) break;
      inner.push(line.slice(Math.min(width, depthOfLine)));
    }
    const item = element("li");
    if (inner.length === 1) item.append(...inline(inner[0]));
    else blocks(inner, item, depth + 1);
    made.append(item);
    // A blank line between items does not end the list.
    if (at + 1 < lines.length && !lines[at].trim() && ITEM.exec(lines[at + 1])?.[1].length === indent.length) at++;
  }
  into.append(made);
  return at;
}

function table(lines, at, into) {
  const cells = (line) =>
    line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|").map((cell) => cell.trim());
  const row = (name, line) => element("tr", "", ...cells(line).map((cell) => element(name, "", ...inline(cell))));
  const body = element("tbody");
  const made = element("table", "", element("thead", "", row("th", lines[at])), body);
  for (at += 2; at < lines.length && lines[at].includes("|"); at++) body.append(row("td", lines[at]));
  into.append(made);
  return at;
}

const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*([^\s*](?:[\s\S]*?[^\s])?)\*\*|(?<![\w*])\*([^\s*](?:[^*]*?[^\s*])?)\*(?![\w*])|(?<!\w)_([^\s_](?:[^_]*?[^\s_])?)_(?!\w)|~~([^~]+)~~|\[([^\]\n]+)\]\((\S+?)\)|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"])/g;

function inline(text) {
  const made = [];
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > end) made.push(text.slice(end, found.index));
    end = found.index + found[0].length;
    const [all, , code, strong, star, underline, struck, label, target, address] = found;
    if (code !== undefined) made.push(element("code", "", code));
    else if (strong !== undefined) made.push(element("strong", "", ...inline(strong)));
    else if (star ?? underline) made.push(element("em", "", ...inline(star ?? underline)));
    else if (struck !== undefined) made.push(element("s", "", ...inline(struck)));
    else if (label !== undefined) made.push(link(target, label) ?? all);
    else made.push(link(address, address) ?? all);
  }
  if (end < text.length) made.push(text.slice(end));
  return made;
}

/// A link; none to anything but web pages.
function link(target, label) {
  if (!/^https?:\/\//i.test(target)) return undefined;
  const made = element("a", "", label);
  made.href = target;
  made.target = "_blank";
  made.rel = "noopener noreferrer";
  return made;
}

function codeBlock(code, language) {
  const copy = element("button", "", "Copy");
  copy.type = "button";
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Cannot copy";
    }
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  const head = element("div", "head", element("span", "", language || "text"), copy);
  return element("div", "block", head, element("pre", "", element("code", "", ...highlighted(code, language))));
}

const HASH = new Set(["python", "py", "sh", "bash", "shell", "ruby", "rb", "yaml", "yml", "toml", "perl", "r", "make"]);
const DASH = new Set(["sql", "lua", "haskell", "hs"]);
const WORDS = new Set(
  `abstract and as async await begin break case catch class const continue def default del do done echo elif else end
  enum export extends extern false fi final finally fn for from func function global go goto if impl import in interface
  is lambda let local loop match mod move mut namespace new nil none not null or package pass private protected pub public
  raise ref return select self static struct super switch template then this throw trait true try type typedef union
  unless unsafe until use using var virtual void volatile when where while with yield None True False int float double
  char bool string String str i32 u32 i64 u64 usize f32 f64`.split(/\s+/),
);

/// Comments, texts, numbers and the words that most languages keep for themselves.
function highlighted(code, language) {
  const name = language.toLowerCase();
  const comment = HASH.has(name) ? "#[^\\n]*" : DASH.has(name) ? "--[^\\n]*" : "//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)";
  const tokens = new RegExp(
    `(${comment})|("(?:[^"\\\\\\n]|\\\\.)*"?|'(?:[^'\\\\\\n]|\\\\.){0,200}'|\`(?:[^\`\\\\]|\\\\.)*\`?)|(\\b\\d[\\w.]*)|([A-Za-z_]\\w*)`,
    "g",
  );
  // A very long text is shown as it is.
  if (!name || name === "text" || code.length > 50_000) return [code];
  const made = [];
  let end = 0;
  for (const found of code.matchAll(tokens)) {
    const kind = found[1] ? "comment" : found[2] ? "string" : found[3] ? "number" : WORDS.has(found[4]) ? "word" : "";
    if (!kind) continue;
    made.push(code.slice(end, found.index), element("span", kind, found[0]));
    end = found.index + found[0].length;
  }
  made.push(code.slice(end));
  return made;
}
