// A stream of messages from the server. It pauses while the page is hidden, and restarts after a break:
// the server then sends everything again, so that nothing is missing.

const listeners = new Set();
let state = "connecting";

export function connection() {
  return state;
}

export function onConnection(listener) {
  listeners.add(listener);
}

function report(next) {
  if (next === state) return;
  state = next;
  for (const listener of listeners) listener(state);
}

export function open(address, receive, signal, { missing = () => {} } = {}) {
  let source = null;
  let timer = null;

  function start() {
    stop();
    if (state !== "locked") report("connecting");
    source = new EventSource(address);
    source.onopen = () => report("live");
    source.onmessage = (event) => receive(JSON.parse(event.data));
    source.onerror = () => {
      if (state !== "locked") report("lost");
      if (source?.readyState === EventSource.CLOSED) retry();
    };
  }

  async function retry() {
    stop();
    const status = await failure();
    if (status === 404) {
      report("live");
      missing();
    } else if (status === 401) {
      report("locked");
    } else if (status === 0) {
      report("lost");
    }
    timer = setTimeout(start, 2000);
  }

  // A stream does not report why it failed; a plain request does.
  async function failure() {
    const controller = new AbortController();
    try {
      return (await fetch(address, { signal: controller.signal })).status;
    } catch {
      return 0;
    } finally {
      controller.abort();
    }
  }

  function stop() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  function onVisibility() {
    if (document.hidden) stop();
    else if (source === null) start();
  }

  document.addEventListener("visibilitychange", onVisibility, { signal });
  addEventListener("pagehide", stop, { signal });
  signal.addEventListener("abort", stop);
  if (!document.hidden) start();
}

export async function stopRun(id) {
  const response = await fetch(`/api/stop?id=${encodeURIComponent(id)}`, { method: "POST" });
  if (!response.ok) throw new Error(await response.text());
}

// The tags that the run has afterwards.
export async function changeTags(id, { add = [], remove = [] }) {
  const query = new URLSearchParams([["id", id], ...add.map((tag) => ["add", tag]), ...remove.map((tag) => ["remove", tag])]);
  const response = await fetch(`/api/tags?${query}`, { method: "POST" });
  if (!response.ok) throw new Error(await response.text());
  return (await response.json()).tags;
}

export async function getJson(address, signal) {
  let response = null;
  try {
    response = await fetch(address, { signal });
  } catch (error) {
    if (!signal.aborted && state !== "locked") report("lost");
    throw error;
  }
  if (response.status === 401) report("locked");
  if (!response.ok) throw new Error(await response.text());
  report("live");
  return response.json();
}
