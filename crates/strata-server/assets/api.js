// Requests to the server this page came from, and the events that it streams.

let key = sessionStorage.getItem("strata-key") ?? "";

export function setKey(value) {
  key = value.trim();
  sessionStorage.setItem("strata-key", key);
}

export function getKey() {
  return key;
}

/// What a server said is wrong.
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function request(path, body, signal) {
  const headers = {};
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const options = { method: body === undefined ? "GET" : "POST", headers, signal };
  const response = await fetch(path, body === undefined ? options : { ...options, body: JSON.stringify(body) });
  if (response.ok) return response;
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message ?? message;
  } catch {
    // What is no JSON has nothing to tell.
  }
  throw new ServerError(response.status, message);
}

/// The data of server-sent events, as text, one by one. (EventSource can neither POST nor send a key.)
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      // A line's end may itself be cut in two: a CR at the very end waits.
      const complete = rest.endsWith("\r") ? rest.length - 1 : rest.length;
      const lines = rest.slice(0, complete).split(/\r\n|\n|\r/);
      rest = lines.pop() + rest.slice(complete);
      for (const line of lines) {
        if (line.startsWith("data:")) yield line.slice(5).trimStart();
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
